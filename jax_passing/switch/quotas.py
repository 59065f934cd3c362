"""How much of a switch one address may have, so that nobody takes it all.

An address stands for a machine. Who can send from many addresses has as many shares: only keys tell such a stranger
from a host.
"""

from collections import Counter
from typing import Protocol

CONNECTIONS_MAX = 4096  # of all addresses, if there are descriptors for them
# A machine with 64 ranks, whose devices have jobs of their own (strategy flat), twice.
CONNECTIONS_PER_ADDRESS = 256
# Two programs, and the jobs of their devices; the conformance test has three at once.
JOBS_PER_ADDRESS_MIN = 4
# 1,024 ranks that are started at once through one switch. Hosts join within milliseconds, or 5 s where a job is spread
# over several switches and one of these is late.
UNJOINED_MAX = 1024
# Of racks' switches there. What a rank says takes up to 20 KB, so these take 160 MB. 16 jobs of 512 ranks in a rack's
# subtree; as many hosts may have seats there.
RANKS_PER_ADDRESS = 8192


# By TLS, that come to nothing. Each takes up to 3 ms of the switch's one thread, twenty times as much as a connection
# without: so a stranger takes 5 % of it. Whoever has the key may begin as many as it likes.
HANDSHAKES_PER_S = 16
ADDRESSES_MAX = 4096  # of which we remember handshakes that have been forgiven


class Guest(Protocol):
    """A connection that hasn't joined yet."""

    def make_room(self, why: str) -> None:
        """Hears why, and leaves."""


class ConnectionQuota:
    """Counts connections from when they are opened until they are closed.

    Those that haven't joined make room for new ones: of the same address, if that has as many as it may, otherwise of
    the address that has most of them. So a host that has just connected is the last to go.
    """

    def __init__(self, connections_max: int, per_address: int):
        self._connections_max = connections_max
        self._per_address = per_address
        self._unjoined: dict[str, dict[Guest, None]] = {}  # by address, the oldest first
        self._count: Counter[str] = Counter()  # of all, by address
        self._handshakes: dict[str, tuple[float, float]] = {}  # by address: how many had come to nothing, and when
        self.counts: Counter[str] = Counter()

    def enter(self, guest: Guest, address: str) -> str:
        """Why there is no room; else empty, and somebody may have made some."""
        oldest, why = self._who_goes(address)
        if why and oldest is None:
            self.counts["connections_refused"] += 1
            return why
        if oldest is not None:
            self.counts["connections_displaced"] += 1
            oldest.make_room(why)
        self._count[address] += 1
        self._unjoined.setdefault(address, {})[guest] = None
        return ""

    def _who_goes(self, address: str) -> tuple[Guest | None, str]:
        """For one more of this address, and why. Without a guest that could, nobody goes."""
        if self._count[address] >= self._per_address:
            ours = self._unjoined.get(address, {})
            return next(iter(ours), None), (
                f"{address} has {self._count[address]} connections to this switch, as many as one address may "
                "(connections_per_address)."
            )
        is_full = self._count.total() >= self._connections_max
        if is_full or sum(map(len, self._unjoined.values())) >= UNJOINED_MAX:
            most = max(self._unjoined.values(), key=len, default={})
            what = f"{self._connections_max} connections" if is_full else f"{UNJOINED_MAX} that haven't joined a job"
            return next(iter(most), None), f"This switch has {what}, as many as it may."
        return None, ""

    def joined(self, guest: Guest, address: str) -> None:
        """It is none of those any more that make room."""
        ours = self._unjoined.get(address, {})
        ours.pop(guest, None)
        if not ours:
            self._unjoined.pop(address, None)

    def begin_handshake(self, address: str, now: float) -> str:
        """Why it may not; else empty. An address may have as many that come to nothing as it may have connections; some
        are forgiven every second."""
        count = self._handshakes_of(address, now)
        if count > self._per_address - 1:
            self.counts["handshakes_refused"] += 1
            return (
                f"{self._per_address} connections of {address} haven't shown that they know a job's key, as many as "
                "one address may have in a short time."
            )
        if len(self._handshakes) >= ADDRESSES_MAX:
            self._handshakes = {
                one: (left, now) for one in self._handshakes if (left := self._handshakes_of(one, now)) > 0
            }
        self._handshakes[address] = count + 1, now
        return ""

    def end_handshake(self, address: str, now: float) -> None:
        """It went well: it isn't one that came to nothing."""
        self._handshakes[address] = max(0, self._handshakes_of(address, now) - 1), now

    def _handshakes_of(self, address: str, now: float) -> float:
        count, then = self._handshakes.get(address, (0, now))
        return max(0, count - HANDSHAKES_PER_S * (now - then))

    def leave(self, guest: Guest, address: str) -> None:
        """One that has entered."""
        self.joined(guest, address)
        self._count[address] -= 1
        if not self._count[address]:
            del self._count[address]

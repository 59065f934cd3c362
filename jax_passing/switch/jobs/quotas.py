"""One address may have only so much of a switch, so that nobody takes it all.

An address stands for a machine. Who can send from many addresses has as many shares: only keys tell such a stranger
from a host.
"""

from collections import Counter
from typing import Protocol

from jax_passing.protocol.handshakes import Handshakes

CONNECTIONS_MAX = 4096  # for all addresses together, if there are descriptors for them
# Enough for a machine with 64 ranks whose devices have jobs of their own (strategy flat), twice.
CONNECTIONS_PER_ADDRESS = 256
# Enough for two programs and the jobs of their devices. The conformance test has three jobs at once.
JOBS_PER_ADDRESS_MIN = 4
# A job of 1,024 ranks may be started at once through one switch. Its hosts join within milliseconds, or within 5 s
# where the job is spread over several switches and one of these is late.
UNJOINED_MAX = 1024
# As many ranks may join through the switches of racks that have one address, and as many hosts may have seats through
# them. It is enough for 16 jobs of 512 ranks each. What a rank says takes up to 20 KB, so all of them take 160 MB.
RANKS_PER_ADDRESS = 8192


class Guest(Protocol):
    """A guest is a connection that hasn't joined a job yet."""

    def make_room(self, why: str) -> None:
        """Tells the other end why, and leaves."""


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
        self._handshakes = Handshakes(per_address)
        self.counts: Counter[str] = Counter()

    def enter(self, guest: Guest, address: str) -> str:
        """Lets the guest in, and returns an empty text; or returns why there is no room for it. Another guest may have
        to leave so that there is."""
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

    @property
    def connections(self) -> int:
        return self._count.total()

    def _who_goes(self, address: str) -> tuple[Guest | None, str]:
        """Says who has to go so that one more connection of this address may come, and why. The text is empty if nobody
        has to; there is a text and no guest if somebody would have to, and nobody can."""
        if self._count[address] >= self._per_address:
            ours = self._unjoined.get(address, {})
            return next(iter(ours), None), (
                f"{address} has {self._count[address]} connections to this switch, as many as one address may "
                "(connections_per_address)."
            )
        is_full = self.connections >= self._connections_max
        if is_full or sum(map(len, self._unjoined.values())) >= UNJOINED_MAX:
            most = max(self._unjoined.values(), key=len, default={})
            what = f"{self._connections_max} connections" if is_full else f"{UNJOINED_MAX} that haven't joined a job"
            return next(iter(most), None), f"This switch has {what}, as many as it may."
        return None, ""

    def joined(self, guest: Guest, address: str) -> None:
        """The guest has joined a job: it doesn't make room for others any more."""
        ours = self._unjoined.get(address, {})
        ours.pop(guest, None)
        if not ours:
            self._unjoined.pop(address, None)

    def begin_handshake(self, address: str, now: float) -> str:
        """Returns an empty text, or why this address may not begin a handshake now. It may have as many handshakes that
        come to nothing as it may have connections; some of them are forgiven every second."""
        if self._handshakes.begin(address, now):
            return ""
        self.counts["handshakes_refused"] += 1
        return (
            f"{self._per_address} connections of {address} haven't shown that they know a job's key, as many as "
            "one address may have in a short time."
        )

    def end_handshake(self, address: str, now: float) -> None:
        """A handshake of this address went well, so it doesn't count."""
        self._handshakes.succeeded(address, now)

    def leave(self, guest: Guest, address: str) -> None:
        """A guest that had been let in is gone."""
        self.joined(guest, address)
        self._count[address] -= 1
        if not self._count[address]:
            del self._count[address]

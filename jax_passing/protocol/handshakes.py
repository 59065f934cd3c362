"""Failed handshakes are limited by address: a caller without a job's key can begin only a few."""

# A TLS handshake that comes to nothing takes up to 3 ms of the one thread of a switch, or of a host, twenty times as
# much as a connection without one. So one address can keep 5 % of the thread busy. Handshakes that succeed don't count.
HANDSHAKES_PER_S = 16
ADDRESSES_MAX = 4096  # beyond this number of addresses we look which handshakes are forgiven by now


class Handshakes:
    """The failed handshakes of an address are limited; some of them are forgiven every second."""

    def __init__(self, per_address: int):
        self._per_address = per_address
        self._counts: dict[str, tuple[float, float]] = {}  # by address: how many had come to nothing, and when

    def begin(self, address: str, now: float) -> bool:
        """Tells whether this address may begin a handshake now. It counts until `succeeded`."""
        count = self._count(address, now)
        if count + 1 > self._per_address:
            return False
        if len(self._counts) >= ADDRESSES_MAX:
            self._counts = {one: (left, now) for one in self._counts if (left := self._count(one, now)) > 0}
        self._counts[address] = count + 1, now
        return True

    def succeeded(self, address: str, now: float) -> None:
        """A handshake of this address went well, so it doesn't count."""
        self._counts[address] = max(0, self._count(address, now) - 1), now

    def _count(self, address: str, now: float) -> float:
        count, then = self._counts.get(address, (0, now))
        return max(0, count - HANDSHAKES_PER_S * (now - then))

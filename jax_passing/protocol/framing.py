"""A connection has lines: bytes go in here, and lines come out. Both ends read with it, whatever brings the bytes."""

import msgspec


class Lines:
    """Takes what came, in pieces of any size, and gives it back line by line."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._searched = 0  # the number of these bytes that end no line

    @property
    def rest_bytes(self) -> int:
        """Counts the bytes that were received and belong to no line that was given back."""
        return len(self._received)

    def add(self, received: bytes) -> None:
        self._received += received

    @property
    def has_line(self) -> bool:
        end = self._received.find(b"\n", self._searched)
        self._searched = len(self._received) if end < 0 else end
        return end >= 0

    def next(self, bytes_max: int) -> bytes | None:
        """Returns the next line without its end, or None if none is complete. Raises msgspec.DecodeError if it is
        longer than `bytes_max`, or will be."""
        has_line = self.has_line
        if self._searched > bytes_max:
            raise msgspec.DecodeError("a line is too long")
        if not has_line:
            return None
        line = bytes(self._received[: self._searched])
        del self._received[: self._searched + 1]
        self._searched = 0
        return line

"""A connection between two hosts carries frames: a header of 48 bytes, and after some of them the bytes of a message.

The caller sends messages. A short one goes at once. A long one is announced, and goes when the other host has
posted a receive for it and so has memory for its bytes. The other says of each message when it has taken it.
"""

import enum
import struct
from collections.abc import Callable
from typing import NamedTuple

MAGIC = 0x4A505348  # with the format's version in its last character
SHORT_BYTES = 64 * 1024  # no longer message goes before it is wanted
BYTES_MAX = 1 << 40
SCRATCH_BYTES = 64 * 1024  # short frames are read together
_HEADER = struct.Struct("<IIQQIIiIQ")
HEADER_BYTES = _HEADER.size


class FrameError(ValueError):
    """No frame came, or one that may not come now."""


class Kind(enum.IntEnum):
    """A frame says one of these things. The first four go from the caller to the called, the others back."""

    HELLO = 1  # `group` is the token that the called host has published, `source` and `target` are the two ranks
    SHORT = 2  # a message, with its bytes
    LONG = 3  # a message, without them
    DATA = 4  # the bytes of message `number`, which was announced, and granted
    WELCOME = 5
    GRANT = 6  # send message `number`
    TAKEN = 7  # message `number` is where it belongs
    MISMATCH = 8  # message `number` is wanted with another number of bytes than it has


REPLIES = (Kind.WELCOME, Kind.GRANT, Kind.TAKEN, Kind.MISMATCH)
_KINDS = frozenset(Kind)
_WITH_BYTES = (Kind.SHORT, Kind.DATA)
_WITH_A_SIZE = (Kind.LONG, Kind.MISMATCH)


class Frame(NamedTuple):
    kind: Kind
    number: int = 0  # of the message, counted on its connection
    group: int = 0
    source: int = 0  # indexes of devices in the group
    target: int = 0
    tag: int = 0
    size_bytes: int = 0

    @property
    def payload_bytes(self) -> int:
        return self.size_bytes if self.kind in _WITH_BYTES else 0

    def encode(self) -> bytes:
        kind, number, group, source, target, tag, size_bytes = self
        return _HEADER.pack(MAGIC, kind, number, group, source, target, tag, 0, size_bytes)


def decode(header: bytes | memoryview) -> Frame:
    """Returns the frame with this header. Raises FrameError."""
    magic, kind, number, group, source, target, tag, reserved, size_bytes = _HEADER.unpack(header)
    if magic != MAGIC or reserved:
        raise FrameError("the bytes received are no frame of jax_passing")
    if kind not in _KINDS:
        raise FrameError(f"no frame is of kind {kind}")
    if size_bytes > (SHORT_BYTES if kind == Kind.SHORT else BYTES_MAX):
        raise FrameError(f"a frame of kind {Kind(kind).name} tells of {size_bytes} bytes, which are too many")
    if size_bytes and kind not in _WITH_BYTES + _WITH_A_SIZE:
        raise FrameError(f"a frame of kind {Kind(kind).name} has bytes")
    return Frame(Kind(kind), number, group, source, target, tag, size_bytes)


class FrameReader:
    """Takes what comes, in pieces of any size. The bytes of a message go where its owner has memory for them: those of
    long ones are received there, without a copy.

    A caller fills a part of `buffer()`, and tells how much by `filled`.
    """

    def __init__(self, memory_for: Callable[[Frame], memoryview], heard: Callable[[Frame], None]):
        """`memory_for`: is called when a header with bytes is here, and returns memory of exactly that size. `heard`:
        is called when a frame is complete. Either may raise FrameError, which `filled` then raises."""
        self._memory_for, self._heard = memory_for, heard
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._kept = 0  # bytes of a header that is incomplete, at the beginning of the scratch memory
        self._frame: Frame | None = None  # whose bytes are being received
        self._rest = self._scratch[:0]  # of the memory for them
        self._is_stopped = False

    def stop(self) -> None:
        """Touches no memory of others any more: later frames are read, and forgotten."""
        self._is_stopped, self._frame, self._rest = True, None, self._scratch[:0]

    def buffer(self) -> memoryview:
        if self._frame is not None:
            return self._rest
        return self._scratch if self._is_stopped else self._scratch[self._kept :]

    def filled(self, count: int) -> None:
        """Raises FrameError if the bytes make no sense: then nothing more may be read."""
        if self._is_stopped:
            return
        if self._frame is not None:
            self._advance(count)
            return
        come, at = self._scratch[: self._kept + count], 0
        while (used := self._take(come[at:])) > 0:
            at += used
        left = bytes(come[at:])
        self._scratch[: len(left)] = left
        self._kept = len(left)

    def _take(self, come: memoryview) -> int:
        """Returns how many of these bytes it has used."""
        if self._is_stopped:
            return len(come)
        if self._frame is not None:
            piece = come[: len(self._rest)]
            self._rest[: len(piece)] = piece
            if len(piece):
                self._advance(len(piece))
            return len(piece)
        if len(come) < HEADER_BYTES:
            return 0
        self._begin(decode(come[:HEADER_BYTES]))
        return HEADER_BYTES

    def _begin(self, frame: Frame) -> None:
        if not frame.payload_bytes:
            self._heard(frame)
            return
        rest = self._memory_for(frame)
        if not self._is_stopped:
            assert len(rest) == frame.payload_bytes
            self._frame, self._rest = frame, rest

    def _advance(self, count: int) -> None:
        frame, self._rest = self._frame, self._rest[count:]
        assert frame is not None
        if not len(self._rest):
            self._frame = None
            self._heard(frame)

"""A connection of asyncio carries frames. It is called, and never waits."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from jax_passing.for_jax.frames import Frame, FrameError, FrameReader
from jax_passing.protocol.stream import send_at_once

PIECE_BYTES = 256 * 1024  # are given to asyncio at once
UNSENT_BYTES = 512 * 1024  # in asyncio's buffer at most, and a piece


class PeerConnection(asyncio.BufferedProtocol):
    """One end of a connection: first both ends greet, then they converse.

    Attributes:
      greeted: the first frame that came. It fails with OSError or FrameError.
      unsent: the frames still to be sent.
      moved_bytes: how many have come and gone while both ends converse.
    """

    def __init__(self, hello: Frame | None, unsent: "deque[memoryview] | None" = None):
        """`hello`: the first message of this end, if it is the caller. Is called in the event loop."""
        self._hello = hello
        self.greeted: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self.greeted.add_done_callback(lambda done: done.cancelled() or done.exception())  # maybe nobody waits for it
        self.unsent = deque[memoryview]() if unsent is None else unsent
        self.moved_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._is_conversing = self._is_paused = self._is_stopped = False
        self._reader = FrameReader(self._no_memory, self._on_greeting)
        self._on_lost: Callable[[str], None] = lambda why: None

    # Its owner uses this.

    @property
    def is_connected(self) -> bool:
        return self._transport is not None

    def converse(
        self,
        memory_for: Callable[[Frame], memoryview],
        heard: Callable[[Frame], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """Both ends have greeted. The first two arguments are those of FrameReader."""
        if self._is_stopped:
            return
        self._on_lost = on_lost
        if self._transport is None:  # it came and went
            on_lost("the connection was closed")
            return
        self._is_conversing = True
        self._reader = FrameReader(memory_for, heard)
        self._transport.resume_reading()
        self._pump()

    def send(self, frame: Frame, data: memoryview | None) -> None:
        """Sends it, once both have greeted. The contents of `data` must stay until the other has answered, or
        `stop`."""
        if self._is_stopped:
            return
        header = frame.encode()
        if data is None or len(data) <= PIECE_BYTES:
            self.unsent.append(memoryview(b"".join((header, b"" if data is None else data))))
        else:
            self.unsent.append(memoryview(header))
            self.unsent.append(data)
        self._pump()

    def stop(self) -> None:
        """Touches no memory of messages any more. Later frames are forgotten; the connection stays, so that the other
        end doesn't take this host for lost before the switch tells it what has happened."""
        self._is_stopped = True
        self._reader.stop()
        is_unsent = self._transport is not None and (self.unsent or self._transport.get_write_buffer_size())
        if is_unsent and self._is_conversing and self._hello is not None:  # there may be a part of a message
            self.give_up()
        self.unsent.clear()

    def give_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Closes it after what was sent."""
        if self._transport is not None:
            self._transport.close()

    # Asyncio calls this.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._socket = transport, transport.get_extra_info("socket")
        send_at_once(transport)
        transport.set_write_buffer_limits(UNSENT_BYTES)
        if self._hello is not None:
            transport.write(self._hello.encode())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.moved_bytes += nbytes if self._is_conversing else 0
        try:
            self._reader.filled(nbytes)
        except FrameError as error:
            self._lose(str(error))
            self.give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        with suppress(OSError):  # the other hears of it even if a child that was forked holds the socket, too
            self._socket.shutdown(socket.SHUT_RDWR)
        self._lose(str(exc or "the other end has closed it"))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._pump()

    # Inside.

    def _no_memory(self, frame: Frame) -> memoryview:
        raise FrameError("a message comes before the greeting")

    def _on_greeting(self, frame: Frame) -> None:
        if self.greeted.done():
            raise FrameError("more than a greeting comes")
        self.greeted.set_result(frame)
        assert self._transport is not None
        self._transport.pause_reading()

    def _lose(self, why: str) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionError(why))
        if self._is_conversing and not self._is_stopped:
            self._is_conversing = False
            self._on_lost(why)

    def _pump(self) -> None:
        """Writes as much as asyncio should have at once."""
        while self._is_conversing and self.unsent and not self._is_paused and self._transport is not None:
            piece = self.unsent.popleft()
            if len(piece) > PIECE_BYTES:
                self.unsent.appendleft(piece[PIECE_BYTES:])
            self.moved_bytes += len(piece[:PIECE_BYTES])
            self._transport.write(piece[:PIECE_BYTES])

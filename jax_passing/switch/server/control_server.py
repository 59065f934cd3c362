"""The control plane in an event loop, with real streams and timers (see `outside.py`). One thread, no locks."""

import asyncio
import errno
import ipaddress
import logging
import secrets
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable
from typing import Any

import msgspec

from jax_passing.config import address_text
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import secure_channel
from jax_passing.protocol.link_rate import link_gbit
from jax_passing.protocol.outside import Conversation, Timer, UnreadError
from jax_passing.switch.data_planes.data_plane import DataPlane
from jax_passing.switch.jobs.quotas import CONNECTIONS_MAX
from jax_passing.switch.server.control_plane import ControlPlane
from jax_passing.switch.server.settings import SwitchSettings

log = logging.getLogger("jax_passing.switch")

FAREWELL_S = 1.0
HANDSHAKE_S = 5.0
FLUSH_S = 10.0  # for what is still to be sent when a connection is closed
# To a peer that doesn't read: they pile up in our memory. All together: of the longest messages three for each of the
# 63 others of a job, though the network were to stand still; then whoever has most of it unread is given up.
UNSENT_BYTES_MAX = 8 * messages.RELAY_BYTES_MAX
UNSENT_TOTAL_BYTES_MAX = 256 * messages.RELAY_BYTES_MAX
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
TLS_BUFFER_BYTES = 16 * 1024  # one record
STALLED_BYTES = 64 * 1024  # who has less unread isn't looked at


def _keep_tls_buffers_small() -> None:
    """Asyncio sets a buffer of 256 KB aside for each connection by TLS, also for strangers who have proved nothing yet.
    It takes no argument for that size, only this attribute of its class."""
    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES


def _plain(host: str) -> str:
    """IPv4 as such, though a dual-stack socket reports ::ffff:10.0.0.1."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or host)


class Stream:
    """A Connection of the control plane's.

    Attributes:
      problem: why we gave it up, for the conversation.
    """

    def __init__(self, writer: asyncio.StreamWriter, on_stalled: Callable[[], None]):
        """`on_stalled`: called when much of what was sent is unread."""
        self.writer = writer
        self._on_stalled = on_stalled
        self.problem: UnreadError | None = None
        # No name: gone before we looked.
        peer = writer.get_extra_info("peername") or ("0.0.0.0", 0)
        own = writer.get_extra_info("sockname") or ("0.0.0.0", 0)
        self.host, self.own_host = _plain(peer[0]), _plain(own[0])
        self.name, self.own_name = address_text(self.host, peer[1]), address_text(self.own_host, own[1])
        self._key: bytes | None = None  # by which the connection is to be secured
        self._is_halfway = False  # in a handshake, or after one that failed

    @property
    def link_gbit(self) -> float | None:
        return link_gbit(self.own_host)

    def send(self, message: messages.Message) -> bool:
        if self.writer.is_closing() or self._is_halfway:
            return True
        self.writer.write(messages.encode(message))
        if self.unsent_bytes > UNSENT_BYTES_MAX:
            self.give_up_unread()
        elif self.unsent_bytes > STALLED_BYTES:
            self._on_stalled()
        return self.problem is None

    @property
    def unsent_bytes(self) -> int:
        return self.writer.transport.get_write_buffer_size()

    def give_up_unread(self) -> None:
        self.problem = UnreadError()
        self.give_up()

    def secure(self, key: bytes) -> None:
        self._key = key
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]  # what comes now is TLS's

    async def secure_as_asked(self, reader: asyncio.StreamReader, server_side: bool) -> bool:
        """Whether it was asked, and is done. Raises OSError, an ssl.SSLError among them."""
        key, self._key = self._key, None
        if key is None:
            return False
        # What lies in the reader came in the clear, from anybody, and would be read as if it had come by TLS.
        if vars(reader)["_buffer"]:
            raise ssl.SSLError("something came before the handshake")
        context = secure_channel.context(key, server_side=server_side)
        self._is_halfway = True
        transport = self.writer.transport
        try:
            await self.writer.start_tls(context, ssl_handshake_timeout=HANDSHAKE_S)
        except ConnectionResetError as error:  # how the other ends the handshake if our certificate isn't its own
            raise ConnectionResetError("the other end hung up in the handshake") from error
        except AttributeError:  # so asyncio fails if the other hangs up right after it: the writer has no transport
            vars(self.writer)["_transport"] = transport
            raise ConnectionResetError("the other end hung up after the handshake") from None
        self._is_halfway = False
        return True

    async def wait_closed(self) -> None:
        """Raises OSError. Asyncio never says so of a connection whose handshake failed, or was broken off."""
        if not self._is_halfway:
            await self.writer.wait_closed()

    def give_up(self) -> None:
        self.writer.transport.abort()

    def close(self) -> None:
        if not self.writer.is_closing():
            self.writer.close()
            asyncio.get_running_loop().call_later(FLUSH_S, self.give_up)


async def _read_line(reader: asyncio.StreamReader, conversation: Conversation) -> bytes | None:
    """None at the end. Raises msgspec.DecodeError.

    The reader has room for the lines that strangers may send. A longer one is taken from it in pieces.
    """
    pieces = bytearray()
    while True:
        try:
            line = await reader.readuntil(b"\n")
            return bytes(pieces + line) if pieces else line
        except asyncio.IncompleteReadError as error:
            if not error.partial and not pieces:
                return None
            problem = "the connection ended inside a line"
            break
        except asyncio.LimitOverrunError as error:
            room_bytes = conversation.line_bytes_max - len(pieces)
            piece_bytes = error.consumed
        if piece_bytes > room_bytes:
            problem = "a line is too long"
            break
        pieces += await reader.readexactly(piece_bytes)
    raise msgspec.DecodeError(problem)  # without the other error as its context, which holds what was read


async def _converse(
    stream: Stream, reader: asyncio.StreamReader, conversation: Conversation, server_side: bool
) -> None:
    """Until the connection is closed. Errors lose their tracebacks here: these lead to this function's variables, and
    so to the errors themselves, and only the garbage collector would free what the reader still holds."""
    error: Exception | None = None
    try:
        conversation.opened(stream)
        while not stream.writer.is_closing() and (line := await _read_line(reader, conversation)) is not None:
            conversation.heard(line)
            if await stream.secure_as_asked(reader, server_side):
                conversation.secured()
            await asyncio.sleep(0)  # _read_line doesn't wait for lines that are here: others have their turn
    except (OSError, msgspec.DecodeError) as caught:
        error = caught.with_traceback(None)
    finally:
        stream.close()
        conversation.closed(stream.problem or error)
    try:
        await stream.wait_closed()
    except OSError as caught:
        caught.with_traceback(None)


class ControlServer:
    """
    Attributes:
      plane: the control plane.
    """

    def __init__(
        self,
        data_plane: DataPlane,
        settings: SwitchSettings,
        switch_key: bytes | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ):
        """Made in the event loop that it is to run in."""
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._streams: set[Stream] = set()
        self._accepts_failed = 0
        self._calls: set[asyncio.Task[None]] = set()  # asyncio itself keeps no task alive
        self.plane = ControlPlane(data_plane, self, settings, switch_key, connections_max)

    async def listen(self, listener: socket.socket) -> None:
        """From now on hosts may come."""
        _keep_tls_buffers_small()
        self._loop.set_exception_handler(self._on_loop_error)
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=messages.LINE_BYTES_MAX)

    async def shut_down(self) -> None:
        """Tells every host, then closes every connection."""
        if self._server is not None:
            self._server.close()
        self.plane.shut_down()
        streams = list(self._streams)
        for stream in streams:
            stream.close()
        if streams:
            waits = [asyncio.ensure_future(stream.wait_closed()) for stream in streams]
            _, late = await asyncio.wait(waits, timeout=FAREWELL_S)
            for stream in streams if late else []:
                stream.give_up()
            await asyncio.gather(*waits, return_exceptions=True)
        for call in self._calls:
            call.cancel()

    def stats(self) -> dict[str, int]:
        """Counters since the start."""
        failed = {"accepts_failed": self._accepts_failed} if self._accepts_failed else {}
        return {**self.plane.stats(), **failed}

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._hold(reader, writer, self.plane.accept(), server_side=True)

    async def _hold(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        conversation: Conversation,
        *,
        server_side: bool,
    ) -> None:
        stream = Stream(writer, self._on_stalled)
        self._streams.add(stream)
        try:
            await _converse(stream, reader, conversation, server_side)
        finally:
            self._streams.discard(stream)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in OUT_OF_RESOURCES and "socket" in context:
            self._accepts_failed += 1
            log.error("no connection can be accepted: %s", error)  # it is tried again after a second
        else:
            loop.default_exception_handler(context)

    def _on_stalled(self) -> None:
        if sum(stream.unsent_bytes for stream in self._streams) > UNSENT_TOTAL_BYTES_MAX:
            max(self._streams, key=lambda stream: stream.unsent_bytes).give_up_unread()

    # What the control plane needs of the world (`outside.Outside`).

    def now(self) -> float:
        return self._loop.time()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_s, callback)

    def random_bits(self, count: int) -> int:
        return secrets.randbits(count)

    def connect(self, address: tuple[str, int], timeout_s: float, conversation: Conversation) -> None:
        call = self._loop.create_task(self._call(address, timeout_s, conversation))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _call(self, address: tuple[str, int], timeout_s: float, conversation: Conversation) -> None:
        opening = asyncio.open_connection(*address, limit=messages.LINE_BYTES_MAX)
        try:
            reader, writer = await asyncio.wait_for(opening, timeout_s)
        except (OSError, ValueError) as error:
            conversation.closed(error)
        else:
            await self._hold(reader, writer, conversation, server_side=False)

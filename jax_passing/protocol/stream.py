"""Both ends of a connection are a stream in an event loop: lines in and out, by TLS where there is a key."""

import asyncio
import ipaddress
import os
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import msgspec

from jax_passing.config import address_text
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import secure_channel
from jax_passing.protocol.framing import Lines
from jax_passing.protocol.link_rate import link_gbit
from jax_passing.protocol.outside import Callee, Conversation, Timer, UnreadError
from jax_passing.protocol.secure_channel import Channel

FLUSH_S = 10.0  # for unsent bytes when a connection is closed
UNSENT_BYTES_MAX = 8 * messages.RELAY_BYTES_MAX  # to a peer that doesn't read: they pile up in our memory
READ_BYTES = 64 * 1024  # at once
STALLED_BYTES = 64 * 1024  # who has less unread isn't looked at


class StreamOwner(ABC):
    """The streams of an event loop belong to one of these, which is an `outside.Outside` for those who converse.

    Attributes:
      buffer: READ_BYTES, in which all of them receive.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self.buffer = bytearray(READ_BYTES)
        self._calls: set[asyncio.Task[None]] = set()  # asyncio itself keeps no task alive

    # Streams use this.

    @abstractmethod
    def add(self, stream: "Stream") -> None:
        """Is called when it is connected."""

    @abstractmethod
    def remove(self, stream: "Stream") -> None:
        """The connection is closed, and its socket is about to be."""

    @abstractmethod
    def on_stalled(self) -> None:
        """Is called when one of them leaves many bytes unread."""

    # Those who converse need this of the world.

    def now(self) -> float:
        return time.monotonic()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_s, callback)

    def random_bits(self, count: int) -> int:
        return secrets.randbits(count)

    def connect(
        self, address: tuple[str, int], timeout_s: float, conversation: Conversation, job: str, key: bytes | None
    ) -> None:
        channel = None if key is None else Channel.caller(job, key)
        stream = Stream(self, conversation, channel, is_caller=True)
        call = self._loop.create_task(self._call(address, timeout_s, stream))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    @abstractmethod
    async def _call(self, address: tuple[str, int], timeout_s: float, stream: "Stream") -> None:
        """Connects the stream, or ends it with what is wrong."""


def send_at_once(transport: asyncio.BaseTransport) -> None:
    """Lets a connection send small messages at once (TCP_NODELAY), else one waits up to 40 ms for the other end to
    acknowledge the one before. asyncio does so only where the socket knows that its protocol is TCP: those made by
    `socket.create_server`, and what they accept, have number 0."""
    with suppress(OSError):  # the other end is gone
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _plain(host: str) -> str:
    """Returns an IPv4 address as such, though a dual-stack socket reports ::ffff:10.0.0.1."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or host)


class Stream(asyncio.BufferedProtocol):
    """This is a Connection (`outside.py`), as a protocol of asyncio: it is called, and never waits."""

    def __init__(self, owner: StreamOwner, conversation: Conversation, channel: Channel | None, *, is_caller: bool):
        """`channel`: if we are the caller, and have a key. As the callee we see what the caller speaks."""
        self._owner = owner
        self._conversation: Conversation | None = conversation  # None once it is closed
        self._channel = channel
        self._is_caller = is_caller
        self._is_by_tls = self._is_secured = False
        self._has_begun = False  # to hear from the other
        self._lines = Lines()
        self._problem: UnreadError | None = None  # why we gave it up
        self._flush: Timer | None = None
        self._is_connected = False

    # The conversation uses this.

    @property
    def link_gbit(self) -> float | None:
        return link_gbit(self.own_host)

    def send(self, message: messages.Message) -> bool:
        if self._transport.is_closing() or (self._channel is not None and not self._is_secured):
            return True
        self._write(messages.encode(message))
        if self.unsent_bytes > UNSENT_BYTES_MAX:
            self.give_up_unread()
        elif self.unsent_bytes > STALLED_BYTES:
            self._owner.on_stalled()
        return self._problem is None

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def give_up_unread(self) -> None:
        self._problem = UnreadError()
        self.give_up()

    def give_up(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        if not self._transport.is_closing():
            self._transport.close()
            self._flush = asyncio.get_running_loop().call_later(FLUSH_S, self.give_up)

    # Asyncio calls this.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._is_connected = transport, True
        send_at_once(transport)
        # One without a name was gone before we looked.
        peer = transport.get_extra_info("peername") or ("0.0.0.0", 0)
        own = transport.get_extra_info("sockname") or ("0.0.0.0", 0)
        self.host, self.own_host = _plain(peer[0]), _plain(own[0])
        self.name, self.own_name = address_text(self.host, peer[1]), address_text(self.own_host, own[1])
        self._owner.add(self)
        self._try(self._open)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._owner.buffer  # of all connections: received bytes are copied from it at once

    def buffer_updated(self, nbytes: int) -> None:
        self._try(self._take, bytes(memoryview(self._owner.buffer)[:nbytes]))

    def eof_received(self) -> None:
        if self._lines.rest_bytes:
            self.end(msgspec.DecodeError("the connection ended inside a line"))
        elif self._channel is not None and not self._is_secured:
            self.end(ConnectionResetError("the other end hung up in the handshake"))
        else:
            self.end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, OSError):
            self._try(self._hear_rest)
        self.end(exc)
        if self._flush is not None:
            self._flush.cancel()
        self._owner.remove(self)

    # The way of what comes.

    def _try(self, step: Callable[..., None], *arguments: bytes) -> None:
        """Ends the connection, and nothing else, if the bytes make no sense."""
        try:
            step(*arguments)
        except (OSError, msgspec.DecodeError) as error:
            self.end(error.with_traceback(None))  # which leads to our variables, and so to the error itself
        except BaseException:  # a fault of ours
            self.end(None)
            raise

    def _open(self) -> None:
        assert self._conversation is not None
        self._conversation.opened(self)
        if self._channel is not None:
            self._transport.write(self._channel.take_outgoing())

    def _take(self, received: bytes) -> None:
        if self._conversation is None:
            return
        if not self._has_begun:
            self._has_begun = True
            self._is_by_tls = self._begins_tls(received[0])
            if self._transport.is_closing():
                return
        self._add(received)
        self._hear()

    def _add(self, received: bytes) -> None:
        self._lines.add(self._decrypted(received) if self._is_by_tls else received)

    def _hear_rest(self) -> None:
        """Hears what the other said before it hung up: it says why then, and asyncio, which failed to write, won't read
        it any more."""
        descriptor = self._transport.get_extra_info("socket").fileno()  # open until this is over
        while self._has_begun and self._conversation is not None:
            line = self._lines.next(self._conversation.line_bytes_max)
            if line is not None:
                self._conversation.heard(line)
                continue
            try:
                received = os.read(descriptor, READ_BYTES)
            except OSError:  # there is nothing more
                return
            if not received:
                return
            self._add(received)

    def _begins_tls(self, first: int) -> bool:
        """Says whether the other speaks TLS. If it may not, the connection is over."""
        if self._is_caller:
            return self._channel is not None and secure_channel.is_record(first)
        callee = cast(Callee, self._conversation)
        if not secure_channel.begins_handshake(first) or not callee.handshake_begins():
            return False
        self._channel = Channel.callee(callee.key_of)
        return True

    def _decrypted(self, received: bytes) -> bytes:
        channel = self._channel
        assert channel is not None
        assert self._conversation is not None
        try:
            plain = channel.receive(received)
        finally:
            self._transport.write(channel.take_outgoing())  # an alert says why, if it failed
        if channel.is_open and not self._is_secured:
            self._is_secured = True
            self._conversation.secured()
        return plain

    def _write(self, plain: bytes) -> None:
        if self._channel is None:
            self._transport.write(plain)
        else:
            self._channel.send(plain)
            self._transport.write(self._channel.take_outgoing())

    def _hear(self) -> None:
        """Lets the conversation hear one line; others have their turn before it hears the next."""
        if self._conversation is None or self._transport.is_closing():
            return
        line = self._lines.next(self._conversation.line_bytes_max)
        if line is not None:
            self._conversation.heard(line)
        if self._lines.has_line:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._try, self._hear)
        else:
            self._transport.resume_reading()

    def end(self, error: Exception | None) -> None:
        """Closes the connection, if there is one, and tells the conversation once. A call that failed ends so, too."""
        conversation, self._conversation = self._conversation, None
        self._channel = None
        if conversation is not None:
            if self._is_connected:
                self.close()
            conversation.closed(self._problem or error)

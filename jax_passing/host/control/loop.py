"""This host's control side runs in the thread of an event loop, with real connections, timers and packets.

The session's other threads call into it, and wait for what comes of that. The loop is the `outside.Outside`.
"""

import asyncio
import concurrent.futures
import ctypes
import ipaddress
import logging
import math
import os
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from jax_passing import _native
from jax_passing.errors import ClosedError
from jax_passing.host.control.outside import TransportEvents, WelcomedShard
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import keys
from jax_passing.protocol.caller import CONNECT_TIMEOUT_S
from jax_passing.protocol.plane_sockets import PlaneSockets
from jax_passing.protocol.stream import Stream, StreamOwner

log = logging.getLogger("jax_passing")

FLUSH_S = 5.0  # for what is still to be sent when a connection is closed
JOIN_THREAD_S = 5.0
EVENT_S = 60.0
SLICE_S = 0.2  # a thread that waits looks so often whether the loop was closed

T = TypeVar("T")

_INSTANCE = uuid.uuid4().hex
_HOST_NAME = ascii(socket.gethostname())[1:-1][:64]


class PacketSocket:
    """This is a UDP socket to each plane of a switch, until a transport takes them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, port: int, planes: int):
        self._loop, self.udp = loop, PlaneSockets(host, port, planes)
        self.lanes_that_fit = self.udp.lanes_that_fit
        self.probe_path, self.hears_path = self.udp.probe_path, self.udp.hears_path
        self._groups: list[int] = []  # descriptors, as long as not all are heard

    @property
    def port(self) -> int:
        return self.udp.port

    def join_group(self, offer: messages.GroupOffer, on_heard: Callable[[], None]) -> None:
        self.stop_listening()
        self.udp.join_group(offer.address, offer.port, job=offer.job_id, epoch=offer.epoch, nonce=offer.nonce)
        self._groups = [each.group_fileno() for each in self.udp.planes]
        for group in self._groups:
            self._loop.add_reader(group, self._on_group, on_heard)

    def _on_group(self, on_heard: Callable[[], None]) -> None:
        if self.udp.hears_group():
            self.stop_listening()
            on_heard()

    def stop_listening(self) -> None:
        for group in self._groups:
            self._loop.remove_reader(group)
        self._groups.clear()

    def leave_group(self) -> None:
        self.stop_listening()
        self.udp.leave_group()

    def close(self) -> None:
        self.stop_listening()


class Transport:
    """The transport has a thread that waits for what its sums ask.

    Attributes:
      native: what handlers are given.
    """

    def __init__(self, native: _native.Transport, loop: asyncio.AbstractEventLoop, events: TransportEvents):
        self.native, self._loop, self._events = native, loop, events
        self._is_closed = False
        self.deliver_order_message, self.note_stall = native.deliver_order_message, native.note_stall
        self.fail, self.failure, self.drain, self.stats = native.fail, native.failure, native.drain, native.stats
        self._thread = threading.Thread(target=self._serve, name="jax_passing-transport", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._is_closed:
            event = self.native.wait_event(EVENT_S)
            if event is not None:
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._on_event, event)

    def _on_event(self, event: object) -> None:
        match event:
            case _native.OrderMessage():
                self._events.order(event.payload)
            case _native.ProgramInfo():
                self._events.program(event)
            case _native.Stalled():
                self._events.stalled(event.stall, event.stalled_s)
            case _native.GroupLost():
                self._events.group_lost(event.shard)
            case _native.NonFinite():
                self._events.non_finite(event)
            case _native.Failure():
                self._events.transport_failed(event.kind, event.message)

    def close(self) -> None:
        self._is_closed = True
        self.native.close()
        self._thread.join(JOIN_THREAD_S)  # it returns at once, but nothing may hang the end of the process


class Lifeline:
    """A second connection to a switch, on which a native thread writes."""

    def __init__(self) -> None:
        self.opening: asyncio.Task[None] | None = None
        self._native: _native.Lifeline | None = None

    def begin(self, connected: socket.socket, period_s: float) -> None:
        self._native = _native.Lifeline(connected.detach(), period_us=round(period_s * 1e6))

    def close(self) -> None:
        if self.opening is not None:
            self.opening.cancel()
        self._native = None


class Loop(StreamOwner):
    """The loop's thread runs from the beginning on, until `close`."""

    instance, host_name = _INSTANCE, _HOST_NAME

    def __init__(self) -> None:
        super().__init__(asyncio.SelectorEventLoop())
        self._is_closed = False
        self._loop.set_exception_handler(self._on_error)
        self._sockets: dict[Stream, socket.socket] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="jax_passing-control", daemon=True)
        self._thread.start()

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        log.error("a defect of this host's control side: %s", context["message"], exc_info=context.get("exception"))

    # For other threads.

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Calls a function in the loop's thread, which must not wait; returns what it does."""
        if threading.current_thread() is self._thread:
            return function(*arguments)
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(function(*arguments))
            except BaseException as error:
                outcome.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return outcome.result()

    def wait(
        self, begin: Callable[[Callable[[T], None], Callable[[Exception], None]], None], timeout_s: float | None = None
    ) -> T:
        """Calls `begin` in the loop's thread, and waits until it calls one of its arguments: the first, with what is
        returned then, or the second, with what is raised. Raises TimeoutError, and ClosedError if the loop is closed
        meanwhile: by another thread, or by a signal's handler in this one, which must find no lock of ours taken."""
        outcome: Future[T] = Future()
        self.call(begin, outcome.set_result, outcome.set_exception)
        until = math.inf if timeout_s is None else self.now() + timeout_s
        while not outcome.done() and self.now() < until:
            if self._is_closed:
                raise ClosedError("the session was shut down while this thread waited for its switch")
            concurrent.futures.wait([outcome], max(0.0, min(SLICE_S, until - self.now())))
        if (error := outcome.exception(0)) is not None:
            raise error  # without the frames of concurrent.futures, which would tell the user nothing
        return outcome.result()

    def watch_signal(self, number: int, on_signal: Callable[[], None]) -> bool:
        """Calls a function in the loop's thread whenever the signal comes, also while the main thread waits in XLA.
        Returns False if the process handles or ignores the signal already."""
        descriptor = _native.watch_signal(number)
        if descriptor is None:
            return False

        def take() -> None:
            with suppress(BlockingIOError):
                os.read(descriptor, 8)
                on_signal()

        def watch() -> None:
            with suppress(BlockingIOError):
                os.read(descriptor, 8)  # what came between two sessions
            self._loop.add_reader(descriptor, take)

        self.call(watch)
        return True

    def close(self) -> None:
        """Ends it, once its connections are closed and what they had to send is sent. Bounded in time."""
        self._is_closed = True
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_THREAD_S)
        self._loop.close()

    async def _shut_down(self) -> None:
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)  # then every stream has its transport
        until = self.now() + FLUSH_S
        for stream in list(self._sockets):
            stream.close()
        while self._sockets and self.now() < until:
            await asyncio.sleep(0.001)
        for stream in list(self._sockets):
            stream.give_up()
        await asyncio.sleep(0)

    def forget_in_child(self, *objects: object) -> None:
        """This process was forked: the threads exist only in the parent, and the connections are the parent's.
        `objects`: what has used the loop."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object((self, *objects)))  # destructors would wait for the threads
        for connected in self._sockets.values():
            connected.close()

    # Streams use this.

    def add(self, stream: Stream) -> None: ...

    def remove(self, stream: Stream) -> None:
        connected = self._sockets.pop(stream)
        with suppress(OSError):  # tells the switch even if a child that was forked without our knowledge holds it, too
            connected.shutdown(socket.SHUT_RDWR)

    def on_stalled(self) -> None: ...

    # The control side needs this of the world, and what every StreamOwner gives.

    async def _call(self, address: tuple[str, int], timeout_s: float, stream: Stream) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                connected = await self._connected(address)
        except (OSError, ValueError) as error:
            stream.end(error)
            return
        self._sockets[stream] = connected
        # If this is cancelled, asyncio closes the transport: the stream hears of it, and `remove` follows.
        await self._loop.create_connection(lambda: stream, sock=connected)

    async def _connected(self, address: tuple[str, int]) -> socket.socket:
        problem: OSError | None = None
        for family, kind, protocol, _, resolved in await self._resolved(address):
            connected = socket.socket(family, kind, protocol)
            try:
                connected.setblocking(False)
                await self._loop.sock_connect(connected, resolved)
                return connected
            except OSError as error:
                problem = error
                connected.close()
            except BaseException:
                connected.close()
                raise
        raise problem or OSError("it has no address")

    async def _resolved(self, address: tuple[str, int]) -> list[Any]:
        """Asks the resolver, for a name, in a thread of its own: Python waits for those of an executor when it ends."""
        arguments = *address, 0, socket.SOCK_STREAM
        with suppress(ValueError):
            ipaddress.ip_address(address[0])
            return socket.getaddrinfo(*arguments)
        found: asyncio.Future[list[Any]] = self._loop.create_future()

        def resolve() -> None:
            outcome: list[Any] | Exception
            try:
                outcome = socket.getaddrinfo(*arguments)
            except Exception as error:
                outcome = error
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(settle, outcome)

        def settle(outcome: list[Any] | Exception) -> None:
            if found.done():  # nobody waits any more
                return
            if isinstance(outcome, Exception):
                found.set_exception(outcome)
            else:
                found.set_result(outcome)

        threading.Thread(target=resolve, name="jax_passing-resolver", daemon=True).start()
        return await found

    def open_socket(self, host: str, port: int, planes: int) -> PacketSocket:
        return PacketSocket(self._loop, host, port, planes)

    def lifeline(self, address: tuple[str, int], token: str, period_s: float) -> Lifeline:
        made = Lifeline()
        made.opening = self._loop.create_task(self._open_lifeline(made, address, token, period_s))
        self._calls.add(made.opening)
        made.opening.add_done_callback(self._calls.discard)
        return made

    async def _open_lifeline(self, made: Lifeline, address: tuple[str, int], token: str, period_s: float) -> None:
        with suppress(OSError):
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connected = await self._connected(address)
                try:
                    await self._loop.sock_sendall(connected, messages.encode(messages.Lifeline(token)))
                    made.begin(connected, period_s)
                finally:
                    connected.close()  # nothing, once it is handed on

    def start_transport(
        self, links: Sequence[WelcomedShard], events: TransportEvents, *, planes: int, **settings: Any
    ) -> Transport:
        shards = [_shard(link, plane) for link in links for plane in range(planes)]
        return Transport(_native.Transport(shards, **settings), self._loop, events)


def _shard(link: WelcomedShard, plane: int) -> _native.ShardLink:
    welcome, packets = link.welcome, link.socket
    assert isinstance(packets, PacketSocket)
    packets.stop_listening()
    return _native.ShardLink(
        packets.udp.planes[plane],
        job=welcome.job_id,
        epoch=welcome.epoch,
        slot_first=welcome.slot_first,
        worker=welcome.worker,
        whole_lanes=welcome.lanes_per_chunk if welcome.whole_chunks else 0,
        name=link.name,
        keys=keys.pair_of_plane(welcome.packet_keys, plane),
        bare=welcome.bare,
    )

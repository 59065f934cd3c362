"""Hosts send each other messages over connections of their own: XLA's ppermutes, all-to-alls and large all-gathers.

A host listens on the address by which it reaches the switch, and calls each host to which it sends, when it first does.
Where the job has a key, both ends prove it by TLS: the hosts' key, if sums are confidential. Everywhere, a caller says
first the token that the called host has published for this run: a caller that can't is a stranger, and is dropped.
Everything here runs in the session's event loop.
"""

import asyncio
import logging
import re
import secrets
import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from jax_passing.config import address_text
from jax_passing.errors import ClosedError, Failure, HostLostError, JoinError
from jax_passing.for_jax.connection import PeerConnection
from jax_passing.for_jax.frames import REPLIES, Frame, FrameError, Kind
from jax_passing.for_jax.groups import DeviceGroup
from jax_passing.for_jax.matching import Ends, Matching, Request
from jax_passing.host.control.loop import Loop
from jax_passing.protocol import keys, secure_channel
from jax_passing.protocol.handshakes import Handshakes

log = logging.getLogger("jax_passing")

STRANGERS_MAX = 64  # at once; the oldest makes room for the next, as a host of ours needs a few round trips only
GREETING_S = 5.0  # for TLS and the greeting
HANDSHAKES_PER_ADDRESS = 256  # that come to nothing, as at a switch
RETRY_S = 0.25
GRACE_S = 1.0  # until a lost connection counts: the switch may say meanwhile why a host has gone
CLOSE_S = 5.0


class Channels:
    """This host's connections to the others. Any thread may call it, and none waits for the network.

    Attributes:
      strangers_dropped: how many have called that aren't hosts of the job.
    """

    def __init__(
        self,
        loop: Loop,
        rank: int,
        world_size: int,
        job: str,
        key: bytes | None,
        deadline_s: float,
        on_failure: Callable[[Failure], None],
    ):
        """`deadline_s`: another host is called for so long. `on_failure`: is called once, in the loop's thread, if
        messages can't go on; the requests have failed by then."""
        self._session_loop, self._loop = loop, loop.call(asyncio.get_running_loop)
        self._rank, self._world_size, self._job, self._key = rank, world_size, job, key
        self._deadline_s, self._on_failure = deadline_s, on_failure
        self._matching = Matching(rank, self._transmit, self._fail_here)
        self._token = secrets.randbits(64)
        self._listener: socket.socket | None = None
        self._peers: dict[int, tuple[str, int, int]] = {}  # host, port and token
        self._receivers: dict[int, PeerConnection] = {}  # whom this host called
        self._senders: dict[int, PeerConnection] = {}  # who called it
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._handshakes = Handshakes(HANDSHAKES_PER_ADDRESS)
        self.strangers_dropped = 0

    # For all threads.

    def start(self, own_host: str) -> str:
        """Listens on a free port of this IP address. Returns what the other hosts' `set_peers` need to know of it.
        Raises OSError."""
        return self._session_loop.call(self._listen, own_host)

    def set_peers(self, peers: Mapping[int, str]) -> None:
        """Tells where the other hosts are, by their ranks, before the first message. Raises JoinError if a text is none
        that a host's `start` has returned."""
        for rank, text in peers.items():
            content = keys.unsealed(self._key, f"channel {rank}", text) or ""
            found = re.fullmatch(r"(\S{1,100}) (\d{1,5}) ([0-9a-f]{16})", content)
            if found is None or int(found[2]) > 65535:
                raise JoinError(
                    f"The coordinator of jax.distributed doesn't have the address of rank {rank} as a host of this job "
                    "tells it: somebody else writes there, or the hosts have different keys. Let nobody but the job's "
                    "hosts reach the coordinator, then start the program again on every host."
                )
            self._peers[rank] = found[1], int(found[2]), int(found[3], 16)

    def send(
        self, group: DeviceGroup, own_index: int, to_index: int, tag: int, data: memoryview, request: Request
    ) -> None:
        """Sends the bytes, which must stay as they are until the request is done."""
        ends = Ends(group.hosts[to_index], group.id, own_index, to_index, tag)
        self._post(self._matching.send, ends, group.name, data, request)

    def receive(
        self, group: DeviceGroup, own_index: int, from_index: int, tag: int, buffer: memoryview, request: Request
    ) -> None:
        """Receives as many bytes as the buffer has, which nobody else may use until the request is done."""
        ends = Ends(group.hosts[from_index], group.id, from_index, own_index, tag)
        self._post(self._matching.receive, ends, group.name, buffer, request)

    def _post(
        self,
        step: Callable[[Ends, str, memoryview, Request], None],
        ends: Ends,
        name: str,
        memory: memoryview,
        request: Request,
    ) -> None:
        try:
            self._loop.call_soon_threadsafe(step, ends, name, memory.cast("B"), request)
        except RuntimeError:  # the loop is closed
            request.done(*_CLOSED)

    def fail(self, failure: Failure) -> None:
        """Ends all requests, also those to come: the session has failed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._fail, failure)

    def close(self) -> None:
        """Ends all connections, before the loop ends. Bounded in time."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()

    @property
    def moved_bytes(self) -> int:
        """Returns how many bytes have come from other hosts and gone to them. It never shrinks."""
        connections = [*self._receivers.values(), *self._senders.values()]
        return sum(connection.moved_bytes for connection in connections)

    # Failing and closing.

    def _fail(self, failure: Failure) -> None:
        for connection in (*self._receivers.values(), *self._senders.values()):
            connection.stop()
        self._matching.fail(failure)

    def _fail_here(self, failure: Failure) -> None:
        if self._matching.failure is None:
            self._fail(failure)
            self._on_failure(failure)

    async def _close(self) -> None:
        self._fail(Failure(*_CLOSED))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if self._listener is not None:
            self._listener.close()
        for connection in (*self._receivers.values(), *self._senders.values()):
            connection.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*tasks, return_exceptions=True)
                while any(each.is_connected for each in (*self._receivers.values(), *self._senders.values())):
                    await asyncio.sleep(0.001)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # asyncio itself keeps no task alive
        task.add_done_callback(self._tasks.discard)
        return task

    # Being called.

    def _listen(self, own_host: str) -> str:
        family = socket.AF_INET6 if ":" in own_host else socket.AF_INET
        self._listener = socket.create_server((own_host, 0), family=family, backlog=STRANGERS_MAX)
        self._listener.setblocking(False)
        self._begin(self._accept(self._listener))
        text = f"{own_host} {self._listener.getsockname()[1]} {self._token:016x}"
        return keys.sealed(self._key, f"channel {self._rank}", text)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connected, (address, *_) = await self._loop.sock_accept(listener)
            except OSError as error:  # too many files are open, or the caller is gone
                log.debug("a caller can't be taken in: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            if self._key is not None and not self._handshakes.begin(address, self._loop.time()):
                self.strangers_dropped += 1
                connected.close()
                continue
            if len(self._strangers) >= STRANGERS_MAX:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.cancel()
            connection = PeerConnection(None)
            task = self._begin(self._greet(connected, address, connection))
            self._strangers[task] = None
            task.add_done_callback(partial(self._after_greeting, connected, connection))
            await asyncio.sleep(0)  # others have their turn, though all call at once

    def _after_greeting(self, connected: socket.socket, connection: PeerConnection, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)
        if task.cancelled() or task.exception() is not None:
            self.strangers_dropped += 1
            log.debug("a stranger was dropped: %s", "others came" if task.cancelled() else task.exception())
            connection.give_up()
            connected.close()

    async def _greet(self, connected: socket.socket, address: str, connection: PeerConnection) -> None:
        """Takes a caller for a host of the job once it has said the token."""
        tls = None if self._key is None else secure_channel.context(self._key, server_side=True)
        async with asyncio.timeout(GREETING_S):
            await self._loop.connect_accepted_socket(lambda: connection, connected, ssl=tls)
            self._handshakes.succeeded(address, self._loop.time())
            hello = await connection.greeted
        if (hello.kind, hello.group, hello.target) != (Kind.HELLO, self._token, self._rank):
            raise FrameError("a caller doesn't know this run's token")
        if hello.source >= self._world_size or hello.source == self._rank:
            raise FrameError(f"a caller says that it is rank {hello.source}, which no other host is")
        if hello.source in self._senders:
            raise FrameError("a caller has called before")
        sender, matching = hello.source, self._matching
        self._senders[sender] = connection
        connection.converse(
            partial(matching.memory_for, sender),
            partial(matching.heard_from_sender, sender),
            partial(self._lost, matching.lost_sender, sender),
        )
        connection.send(Frame(Kind.WELCOME), None)

    # Calling.

    def _transmit(self, peer: int, frame: Frame, data: memoryview | None) -> None:
        if frame.kind in REPLIES:
            self._senders[peer].send(frame, data)
            return
        if peer not in self._receivers:
            self._receivers[peer] = PeerConnection(self._hello(peer))
            self._begin(self._call(peer))
        self._receivers[peer].send(frame, data)

    def _hello(self, peer: int) -> Frame:
        return Frame(Kind.HELLO, group=self._peers[peer][2], source=self._rank, target=peer)

    async def _call(self, peer: int) -> None:
        """Calls a host until it answers, or the deadline is over."""
        until = self._loop.time() + self._deadline_s
        while True:
            connection = self._receivers[peer]
            try:
                async with asyncio.timeout_at(until):  # not earlier: it may have taken us in, and does so once
                    await self._connect(peer, connection)
                    break
            except (OSError, FrameError) as error:
                connection.give_up()
                if self._matching.failure is not None:
                    return
                if self._loop.time() + RETRY_S > until:
                    self._fail_here(self._unreachable(peer, error))
                    return
                self._receivers[peer] = PeerConnection(self._hello(peer), connection.unsent)
                await asyncio.sleep(RETRY_S)
        matching = self._matching
        connection.converse(
            _no_memory,
            partial(matching.heard_from_receiver, peer),
            partial(self._lost, matching.lost_receiver, peer),
        )

    async def _connect(self, peer: int, connection: PeerConnection) -> None:
        host, port, _ = self._peers[peer]
        tls = None if self._key is None else secure_channel.context(self._key, server_side=False)
        name = None if tls is None else secure_channel.server_name(self._job)
        await self._loop.create_connection(lambda: connection, host, port, ssl=tls, server_hostname=name)
        if (await connection.greeted).kind is not Kind.WELCOME:
            raise FrameError("it doesn't welcome this host")

    def _unreachable(self, peer: int, error: Exception) -> Failure:
        where = address_text(*self._peers[peer][:2])
        return Failure(
            HostLostError.__name__,
            f"Rank {self._rank} has called rank {peer} at {where} for {self._deadline_s:g} s, to send it a message, "
            f"and got no answer ({error or type(error).__name__}). It listens on a port that the system chooses: let "
            "hosts of one job reach each other by TCP on all ports, then start the program again on every host.",
            (peer,),
        )

    def _lost(self, tell: Callable[[int, str], None], peer: int, why: str) -> None:
        def count() -> None:
            if self._matching.failure is None:
                tell(peer, why)

        if self._matching.failure is None:
            self._loop.call_later(GRACE_S, count)


_CLOSED = ClosedError.__name__, "the session was shut down while a message was on its way"


def _no_memory(frame: Frame) -> memoryview:
    raise FrameError("a host that was called sends a message")

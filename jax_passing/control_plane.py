"""The switch's control plane over TCP: one conversation a host, leases, shutdown.

One asyncio thread, no locks. What a host sends is never trusted: a bad line costs it its connection, nothing else.
"""

import asyncio
import ipaddress
import logging
import time
import uuid
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import msgspec

from jax_passing import control_messages as messages
from jax_passing.data_plane import DataPlane
from jax_passing.errors import JoinError, SwitchLostError, is_kind
from jax_passing.jobs import Epoch, JobTable, Member, RefusalError, State

log = logging.getLogger("jax_passing.switch")

FIRST_MESSAGE_S = 10.0
FAREWELL_S = 1.0
PROBE_TICK_S = 0.01
CONNECTIONS_MAX = 4096
# A host that doesn't read: relays pile up in our memory.
UNSENT_BYTES_MAX = 8 * messages.RELAY_BYTES_MAX


def _plain(host: str) -> str:
    """IPv4 as such, though a dual-stack socket reports ::ffff:10.0.0.1."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or host)


class HostConnection:
    """Sends to one host; see jobs.Connection."""

    def __init__(self, writer: asyncio.StreamWriter):
        self.writer = writer
        # No name: gone before we looked.
        peer = writer.get_extra_info("peername") or ("0.0.0.0", 0)
        own = writer.get_extra_info("sockname") or ("0.0.0.0", 0)
        self.host, self.own_host = _plain(peer[0]), _plain(own[0])
        self.name = f"{self.host}:{peer[1]}"

    def send(self, message: messages.Message) -> bool:
        if self.writer.is_closing():
            return True
        self.writer.write(messages.encode(message))
        return self.writer.transport.get_write_buffer_size() <= UNSENT_BYTES_MAX

    def close(self) -> None:
        self.writer.close()


async def _read(reader: asyncio.StreamReader) -> bytes | None:
    """A line; None at the end."""
    try:
        return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise msgspec.DecodeError("the connection ended inside a line") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise msgspec.DecodeError("a line is too long") from error


class ControlPlane:
    """All jobs of a switch."""

    def __init__(self, data_plane: DataPlane, *, lease_s: float, slots_per_job: int, link_gbit: float | None = None):
        self._data_plane = data_plane
        self._instance = uuid.uuid4().hex
        self._lease_s = lease_s
        self._jobs = JobTable(data_plane, lease_s=lease_s, slots_per_job=slots_per_job, link_gbit=link_gbit)
        self._connections: set[HostConnection] = set()
        self._counts: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Talks with one host; the handler of a TCP server whose `limit` is RELAY_LINE_BYTES_MAX."""
        connection = HostConnection(writer)
        if len(self._connections) >= CONNECTIONS_MAX:
            self._counts["connections_refused"] += 1
            connection.close()
            return
        self._connections.add(connection)
        try:
            await self._converse(reader, connection)
        except (msgspec.DecodeError, TimeoutError) as error:
            self._counts["malformed"] += 1
            log.warning("closing the connection of %s: %s", connection.name, error or "it says nothing")
        except OSError as error:
            log.info("connection of %s: %s", connection.name, error)
        finally:
            self._connections.discard(connection)
            connection.close()

    async def _converse(self, reader: asyncio.StreamReader, connection: HostConnection) -> None:
        data_plane = self._data_plane
        connection.send(messages.Hello(messages.PROTOCOL_VERSION, data_plane.host, data_plane.port, self._instance))
        line = await asyncio.wait_for(_read(reader), FIRST_MESSAGE_S)
        if line is None:
            return
        if len(line) > messages.LINE_BYTES_MAX:
            raise msgspec.DecodeError("the first line is too long")
        join = messages.decode_from_host(line)
        if not isinstance(join, messages.Join):
            raise msgspec.DecodeError(f"the first message is {type(join).__name__}, not Join")
        try:
            epoch, member = self._jobs.admit(join, connection)
        except RefusalError as refusal:
            log.warning("refused rank %d of job %r (%s): %s", join.rank, join.job, connection.name, refusal)
            connection.send(messages.Refused(JoinError.__name__, str(refusal)))
            return
        if epoch.state is State.PROBING:
            self._keep(self._probe(epoch))
        reason = "closed its connection"
        try:
            while epoch.state is not State.OVER and (line := await _read(reader)) is not None:
                self._on_line(epoch, member, line)
        except msgspec.DecodeError:
            reason = "sent a message that the switch doesn't understand"
            raise
        finally:
            self._jobs.lose(epoch, member, reason)

    def _on_line(self, epoch: Epoch, member: Member, line: bytes) -> None:
        message = messages.decode_from_host(line)
        if len(line) > messages.LINE_BYTES_MAX and not isinstance(message, messages.Relay):
            raise msgspec.DecodeError(f"{type(message).__name__} is too long")
        member.heard = time.monotonic()
        match message:
            case messages.Heartbeat():
                member.connection.send(message)
            case messages.Fail():
                self._on_fail(epoch, member, message)
            case messages.Relay() if member.rank == 0 and epoch.state is State.RUNNING:
                for other in list(epoch.members.values()):
                    if other is not member and not other.left and not other.connection.send(message):
                        self._jobs.lose(epoch, other, "stopped reading what rank 0 sends")
            case messages.Query(slot, version) if epoch.state is State.RUNNING:
                try:
                    member.connection.send(self._jobs.slot_state(epoch, slot, version))
                except ValueError as error:
                    raise msgspec.DecodeError(str(error)) from error
            case messages.CountersQuery() if epoch.state is State.RUNNING:
                member.connection.send(messages.Counters(dict(self._data_plane.stats())))
            case messages.GroupReady() | messages.GroupHeard():
                self._jobs.group_answer(epoch, member, message)
            case messages.GroupLost() if epoch.state is State.RUNNING:
                self._jobs.group_lost(epoch, member)
            case messages.Leave() if epoch.state is State.RUNNING:
                self._jobs.leave(epoch, member)
            case _:
                raise msgspec.DecodeError(f"{type(message).__name__} from rank {member.rank}, {epoch.state.name}")

    def _on_fail(self, epoch: Epoch, member: Member, fail: messages.Fail) -> None:
        if not is_kind(fail.kind) or any(rank >= epoch.world_size for rank in fail.ranks):
            raise msgspec.DecodeError("Fail with an unknown kind or rank")
        if epoch.state is State.RUNNING:
            message = f"{fail.message} (Reported by rank {member.rank}.)"
            self._jobs.fail(epoch, messages.Failed(fail.kind, message, fail.ranks), reporter=member)

    async def _probe(self, epoch: Epoch) -> None:
        while epoch.state is State.PROBING:
            await asyncio.sleep(PROBE_TICK_S)
            self._jobs.advance_probe(epoch, time.monotonic())

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """asyncio itself keeps no task alive."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def watch(self) -> None:
        """Ends leases, and waits of those that join, when their time is over. Runs until cancelled."""
        while True:
            await asyncio.sleep(min(self._lease_s / 10, 0.1))
            if lost := self._data_plane.check():
                self._fail_running(
                    f"The switch's device has lost the job: {lost}. Look at it, then call jax_passing.init again on "
                    "every host."
                )
            now = time.monotonic()
            for epoch in self._jobs.epochs():
                for member in list(epoch.members.values()):
                    if epoch.state is State.FORMING and now >= member.join_until:
                        self._jobs.give_up(epoch, member)
                    elif epoch.state is State.RUNNING and not member.left and now - member.heard > self._lease_s:
                        self._jobs.lose(epoch, member, f"was silent for {self._lease_s:g} s")

    def _fail_running(self, message: str) -> None:
        for epoch in self._jobs.epochs():
            if epoch.state is State.RUNNING:
                self._jobs.fail(epoch, messages.Failed(SwitchLostError.__name__, message))

    async def shut_down(self) -> None:
        """Tells every host, then closes every connection."""
        failed = messages.Failed(
            SwitchLostError.__name__,
            "The switch is shutting down. Start it again, then call jax_passing.init again on every host.",
        )
        for epoch in self._jobs.epochs():
            self._jobs.fail(epoch, failed)
        connections = list(self._connections)
        for connection in connections:
            connection.close()
        if connections:
            waits = [asyncio.ensure_future(connection.writer.wait_closed()) for connection in connections]
            _, late = await asyncio.wait(waits, timeout=FAREWELL_S)
            for connection in connections if late else []:
                connection.writer.transport.abort()
            await asyncio.gather(*waits, return_exceptions=True)

    def stats(self) -> dict[str, int]:
        """Counters since the start."""
        return dict(self._counts + self._jobs.counts)

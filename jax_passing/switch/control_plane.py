"""The switch's control plane over TCP: one conversation a host or a rack's switch, leases, shutdown.

One asyncio thread, no locks. What a peer sends is never trusted: a bad line costs it its connection, nothing else.
"""

import asyncio
import logging
import time
import uuid
from collections import Counter
from functools import partial

import msgspec

from jax_passing.config import unicast_address
from jax_passing.errors import JoinError, SwitchLostError
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.stream_connection import StreamConnection, read_line
from jax_passing.switch.admission import Abilities, RefusalError, check_version, rank_of_host
from jax_passing.switch.background import keep
from jax_passing.switch.data_plane import DataPlane
from jax_passing.switch.dispatch import Dispatcher
from jax_passing.switch.epochs import Epoch, Member, State
from jax_passing.switch.jobs import JobTable
from jax_passing.switch.questions import Questions
from jax_passing.switch.uplink import Uplink
from jax_passing.switch.watch import Watch

log = logging.getLogger("jax_passing.switch")

FIRST_MESSAGE_S = 10.0
FAREWELL_S = 1.0
CONNECTIONS_MAX = 4096


def _is_over(member: Member) -> bool:
    return member.epoch is not None and member.epoch.state is State.OVER


def _packets_of(
    join: messages.Join | messages.RackJoin, connection: StreamConnection, data_host: str
) -> tuple[str, int]:
    """The address that they come from; they go to `data_host`. Raises RefusalError."""
    host = connection.host
    if isinstance(join, messages.RackJoin) and join.data_host:
        try:
            host = unicast_address(join.data_host)
        except ValueError as error:
            raise RefusalError(
                f"The switch at {join.name} can't send packets from there: {error}. Start it with an address of its "
                "own."
            ) from error
    if (":" in host) != (":" in data_host):
        raise RefusalError(
            f"Packets from {host} don't reach {data_host}: one is IPv4, the other IPv6. The switch at "
            f"{connection.own_name} was joined by IPv6, but a device adds up IPv4 only: let the switch --listen on an "
            "IPv4 address, and join there (JAX_PASSING_SWITCH, or --parent of a rack's switch)."
        )
    return host, join.udp_port


class ControlPlane:
    """All jobs of a switch."""

    def __init__(
        self,
        data_plane: DataPlane,
        *,
        lease_s: float,
        slots_per_job: int,
        link_gbit: float | None = None,
        parent: tuple[str, int] | None = None,
    ):
        self._data_plane = data_plane
        self._instance, self._secret = uuid.uuid4().hex, uuid.uuid4().hex
        self._lease_s = lease_s
        self._parent = parent
        self._slots_per_job = slots_per_job
        self._link_gbit = link_gbit
        self._questions = Questions(data_plane)
        uplink_for = None if parent is None else self._uplink_for
        self._tasks: set[asyncio.Task[None]] = set()
        spawn = partial(keep, self._tasks)
        self._jobs = JobTable(data_plane, lease_s=lease_s, spawn=spawn, uplink_for=uplink_for)
        self._dispatcher = Dispatcher(data_plane, self._jobs, self._questions, self._abilities)
        self._watch = Watch(data_plane, self._jobs, lease_s)
        self._connections: set[StreamConnection] = set()
        self._members: set[Member] = set()
        self._counts: Counter[str] = Counter()

    def _abilities(self) -> Abilities:
        data_plane = self._data_plane
        return Abilities(
            self._instance,
            self._slots_per_job,
            data_plane.lanes_per_chunk,
            data_plane.whole_chunks,
            self._link_gbit,
        )

    def _uplink_for(self, epoch: Epoch) -> Uplink:
        assert self._parent is not None
        return Uplink(self._parent, epoch, self._jobs, self._questions, self._data_plane, self._secret)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Talks with one host; the handler of a TCP server whose `limit` is RELAY_LINE_BYTES_MAX."""
        connection = StreamConnection(writer)
        if len(self._connections) >= CONNECTIONS_MAX:
            self._counts["connections_refused"] += 1
            connection.close()
            return
        self._connections.add(connection)
        try:
            await self._converse(reader, connection)
        except msgspec.DecodeError as error:
            self._counts["messages_malformed"] += 1
            log.warning("closing the connection of %s: %s", connection.name, error)
        except OSError as error:
            log.info("connection of %s: %s", connection.name, error)
        finally:
            self._connections.discard(connection)
            connection.close()

    async def _converse(self, reader: asyncio.StreamReader, connection: StreamConnection) -> None:
        data_plane = self._data_plane
        connection.send(messages.Hello(messages.PROTOCOL_VERSION, data_plane.host, data_plane.port, self._instance))
        try:
            line = await asyncio.wait_for(read_line(reader), FIRST_MESSAGE_S)
        except TimeoutError as error:
            raise msgspec.DecodeError(f"it has said nothing for {FIRST_MESSAGE_S:g} s") from error
        if line is None:
            return
        if len(line) > messages.LINE_BYTES_MAX:
            raise msgspec.DecodeError("the first line is too long")
        join = messages.decode_first(line)
        if not isinstance(join, messages.Join | messages.RackJoin):
            raise msgspec.DecodeError(f"the first message is {type(join).__name__}, not Join")
        try:
            member = self._admit(join, connection)
        except RefusalError as refusal:
            log.warning("refused %s for job %r: %s", connection.name, join.job, refusal)
            self._jobs.refused(self._name_of_job(join), str(refusal))
            connection.send(messages.Refused(JoinError.__name__, str(refusal)))
            return
        reason = "closed its connection"
        self._members.add(member)
        try:
            while not _is_over(member) and not connection.gave_up and (line := await read_line(reader)) is not None:
                self._dispatcher.dispatch(join.job, member, line)
                await asyncio.sleep(0)  # read_line doesn't wait for lines that are here: others have their turn
        except msgspec.DecodeError:
            reason = "sent a message that the switch doesn't understand"
            raise
        finally:
            self._members.discard(member)
            for question in member.questions:
                question.cancel()
            if connection.gave_up:
                reason = "asks and doesn't read the answers"
            if member.epoch is not None:
                self._jobs.lose(member.epoch, member, reason)

    def _admit(self, join: messages.Join | messages.RackJoin, connection: StreamConnection) -> Member:
        """Raises RefusalError."""
        now = time.monotonic()
        address = _packets_of(join, connection, self._data_plane.host or connection.own_host)
        if isinstance(join, messages.RackJoin):
            check_version(join, connection.own_name)
            return Member(connection, join.instance, address, now, rack=join.name)
        member = Member(connection, join.instance, address, now, switches=join.switches)
        self._jobs.admit(self._name_of_job(join), rank_of_host(join, connection.host, self._abilities()), member)
        return member

    def _name_of_job(self, join: messages.Join | messages.RackJoin) -> str:
        """Here. Each stripe of a job is one for itself: two of them, of different racks, may have us as their spine."""
        if isinstance(join, messages.RackJoin):
            return join.job
        stripe = join.switches.index(self._instance) if self._instance in join.switches else 0
        return messages.stripe_name(join.job, stripe)

    async def watch(self) -> None:
        """Ends leases, and waits of those that join, when their time is over. Runs until cancelled."""
        while True:
            await asyncio.sleep(min(self._lease_s / 10, 0.1))
            lost = self._watch.check_data_plane()
            now = time.monotonic()
            for member in self._members:
                if member.epoch is None and now - member.alone_since > FIRST_MESSAGE_S:
                    log.info("closing the connection of the switch at %s: it has no ranks", member.rack)
                    member.connection.give_up()
            self._watch.look(now, lost)

    async def shut_down(self) -> None:
        """Tells every host, then closes every connection."""
        for epoch in self._jobs.epochs():
            text = (
                f"The switch at {epoch.own_name} is shutting down. Start it again, then call jax_passing.init again on "
                "every host."
            )
            self._jobs.fail(epoch, messages.Failed(SwitchLostError.__name__, text))
        if self._tasks:  # what parents are told is sent
            await asyncio.wait(list(self._tasks), timeout=FAREWELL_S)
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
        return dict(self._counts + self._jobs.counts + self._watch.counts)

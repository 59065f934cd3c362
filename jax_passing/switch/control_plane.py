"""The switch's control plane over TCP: one conversation a host or a rack's switch, leases, shutdown.

One asyncio thread, no locks. What a peer sends is never trusted: a bad line costs it its connection, nothing else.
"""

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec

from jax_passing.config import RANKS_MAX, unicast_address
from jax_passing.errors import JoinError, SwitchLostError, is_kind
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.stream_connection import StreamConnection, read_line
from jax_passing.switch.admission import Abilities, RefusalError, check_version, rank_of_host, rank_of_rack
from jax_passing.switch.background import keep
from jax_passing.switch.data_plane import DataPlane, unexpected
from jax_passing.switch.epochs import Epoch, Member, State
from jax_passing.switch.jobs import JobTable
from jax_passing.switch.questions import Questions
from jax_passing.switch.uplink import Uplink

log = logging.getLogger("jax_passing.switch")

FIRST_MESSAGE_S = 10.0
FAREWELL_S = 1.0
CONNECTIONS_MAX = 4096
QUESTIONS_MAX = 2 * RANKS_MAX  # of one member at once: a rack's switch asks for each of its hosts


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
        self._check_raised = ""
        spawn = partial(keep, self._tasks)
        self._jobs = JobTable(data_plane, lease_s=lease_s, spawn=spawn, uplink_for=uplink_for)
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
                self._on_line(join.job, member, line)
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

    def _on_line(self, job: str, member: Member, line: bytes) -> None:
        message = messages.decode_from_member(line)
        if len(line) > messages.LINE_BYTES_MAX and not isinstance(message, messages.Relay):
            raise msgspec.DecodeError(f"{type(message).__name__} is too long")
        member.heard = time.monotonic()
        epoch = member.epoch
        match message:
            case messages.Heartbeat():
                member.connection.answer(message)
            case messages.RankJoin() if member.rack:
                self._on_rank(job, member, message)
            case messages.Refused() if member.rack:
                self._jobs.refused(job, message.message)
            case messages.Answer() if member.rack:
                self._questions.on_answer(member.connection, message)
            case _ if epoch is not None and member.rack:
                self._on_rack(epoch, member, message)
            case _ if epoch is not None:
                self._on_host(epoch, member, message)
            case messages.RankGone() | messages.Prepared() | messages.GroupReady() | messages.GroupHeard():
                pass  # about ranks that were refused meanwhile
            case _:
                raise msgspec.DecodeError(f"{type(message).__name__} before any rank joined")

    def _on_rank(self, job: str, member: Member, join: messages.RankJoin) -> None:
        if member.epoch is not None and join.rank in member.ranks:
            raise msgspec.DecodeError(f"rank {join.rank} joins twice")
        try:
            self._jobs.admit(job, rank_of_rack(join, self._abilities()), member)
        except RefusalError as refusal:
            log.warning("refused rank %d of job %r (%s): %s", join.rank, job, member.rack, refusal)
            self._jobs.refused(job, str(refusal))
            member.connection.answer(messages.Refused(JoinError.__name__, str(refusal), join.rank))

    def _on_host(self, epoch: Epoch, member: Member, message: messages.FromMember) -> None:
        match message:
            case messages.Query(slot, version) if epoch.state is State.RUNNING:
                if slot is None:
                    member.connection.answer(messages.SlotState(left=tuple(sorted(epoch.left))))
                else:
                    if not epoch.has_slot(slot):
                        raise msgspec.DecodeError(f"slot {slot} isn't the job's")
                    self._reply(member, partial(self._questions.slot_state, epoch, slot, version))
            case messages.CountersQuery() if epoch.state is State.RUNNING:
                member.connection.answer(messages.Counters(dict(self._data_plane.stats())))
            case messages.Leave() if epoch.state is State.RUNNING:
                self._jobs.leave(epoch, (member.rank,), member)
            case messages.Fail(kind, text, ranks):
                reported = f"{text} (Reported by rank {member.rank}.)"
                self._on_fail(epoch, member, messages.Failed(kind, reported, ranks))
            case _:
                self._on_member(epoch, member, message)

    def _on_rack(self, epoch: Epoch, member: Member, message: messages.FromMember) -> None:
        match message:
            case messages.RankGone(rank):
                if rank in member.ranks:  # else it was refused meanwhile
                    self._jobs.gone(epoch, member, rank, "closed its connection")
            case messages.Prepared(attempt):
                self._jobs.starts.prepared(epoch, member, attempt)
            case messages.Ask() if epoch.state is State.RUNNING:
                self._reply(member, partial(self._questions.answer, epoch, message, member))
            case messages.Left(ranks) if epoch.state is State.RUNNING and member.ranks.keys() >= set(ranks):
                self._jobs.leave(epoch, ranks, member)
            case messages.Fail(kind, text) if epoch.state is State.PREPARING and is_kind(kind):
                self._jobs.refuse_all(epoch, text, kind)
            case messages.Fail(kind, text, ranks):
                self._on_fail(epoch, member, messages.Failed(kind, text, ranks))
            case _:
                self._on_member(epoch, member, message)

    def _on_member(self, epoch: Epoch, member: Member, message: messages.FromMember) -> None:
        match message:
            case messages.Relay() if 0 in member.ranks and epoch.state is State.RUNNING:
                self._jobs.relay(epoch, message, member)
            case messages.GroupReady() | messages.GroupHeard():
                self._jobs.starts.group_answer(epoch, member, message)
            case messages.GroupLost() if epoch.state is State.RUNNING:
                self._jobs.starts.group_lost(epoch, member)
            case _:
                raise msgspec.DecodeError(f"{type(message).__name__} from {member}, {epoch.state.name}")

    def _on_fail(self, epoch: Epoch, member: Member, failed: messages.Failed) -> None:
        if not is_kind(failed.kind) or any(rank >= epoch.world_size for rank in failed.ranks):
            raise msgspec.DecodeError("Fail with an unknown kind or rank")
        if epoch.state is State.RUNNING:
            self._jobs.fail(epoch, failed, reporter=member)

    def _reply(self, member: Member, work: Callable[[], Coroutine[Any, Any, messages.Message]]) -> None:
        """To a question that other switches may have to be asked."""

        async def reply() -> None:
            try:
                member.connection.answer(await work())
            except Exception as error:  # whatever the device's driver raises
                log.error("no answer to a question of %s: %s", member, error, exc_info=unexpected(error))

        if len(member.questions) >= QUESTIONS_MAX:
            raise msgspec.DecodeError("too many questions at once")
        keep(member.questions, reply())

    async def watch(self) -> None:
        """Ends leases, and waits of those that join, when their time is over. Runs until cancelled.

        The switch serves others than the one whom a fault of ours shows in: it ends that job, and no other.
        """
        while True:
            await asyncio.sleep(min(self._lease_s / 10, 0.1))
            lost = self._check_data_plane()
            now = time.monotonic()
            for member in self._members:
                if member.epoch is None and now - member.alone_since > FIRST_MESSAGE_S:
                    log.info("closing the connection of the switch at %s: it has no ranks", member.rack)
                    member.connection.give_up()
            for epoch in self._jobs.epochs():
                try:
                    self._watch_epoch(epoch, now, lost)
                except Exception as error:
                    self._end_faulty(epoch, error)

    def _watch_epoch(self, epoch: Epoch, now: float, lost: str) -> None:
        """`lost`: why the jobs that the data plane had are gone; else empty."""
        if lost and epoch.state is State.RUNNING:
            message = (
                f"The switch's device has lost the job: {lost}. Look at it, then call jax_passing.init again on every "
                "host."
            )
            self._jobs.fail(epoch, messages.Failed(SwitchLostError.__name__, message))
        self._jobs.end_waits(epoch, now)
        if epoch.uplink is not None and epoch.state is State.RUNNING:
            epoch.uplink.check_group(self._data_plane.hears_parents_group(epoch.job.number))
        for member in list(epoch.members):
            if epoch.state is State.RUNNING and now - member.heard > self._lease_s and member.remaining():
                self._jobs.lose(epoch, member, f"was silent for {self._lease_s:g} s")

    def _end_faulty(self, epoch: Epoch, error: Exception) -> None:
        """Ends an epoch that can't be watched. All of its hosts hear why, and those of no other."""
        self._counts["watches_failed"] += 1
        log.error("%s can't be watched any more: %s", epoch, error, exc_info=unexpected(error))
        text = (
            f"The switch can't watch over this job any more ({type(error).__name__}: {error}), which the switch's log "
            "says more about. Call jax_passing.init again on every host."
        )
        try:
            if epoch.state is State.RUNNING:
                self._jobs.fail(epoch, messages.Failed(SwitchLostError.__name__, text))
            else:
                self._jobs.refuse_all(epoch, text)
        except Exception:  # the same fault, perhaps: the others are still watched
            log.exception("%s can't be ended", epoch)

    def _check_data_plane(self) -> str:
        """Why the jobs that it had are gone; else empty."""
        try:
            lost, self._check_raised = self._data_plane.check(), ""
        except Exception as error:  # whatever the device's driver raises; it is asked again
            lost = f"{type(error).__name__}: {error}"
            if lost != self._check_raised:
                log.exception("the data plane's check failed")
            self._check_raised = lost
        return lost

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
        return dict(self._counts + self._jobs.counts)

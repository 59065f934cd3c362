"""The switch's control plane: all of its jobs, and one conversation with each host or rack's switch.

It does no I/O: see `outside.py`. What a peer sends is never trusted: a bad line costs it its connection, nothing else.
"""

import logging
from collections import Counter

import msgspec

from jax_passing.config import unicast_address
from jax_passing.errors import JoinError, SwitchLostError
from jax_passing.protocol import control_messages as messages
from jax_passing.switch.admission import Abilities, RefusalError, check_version, rank_of_host
from jax_passing.switch.data_plane import DataPlane
from jax_passing.switch.dispatch import Dispatcher
from jax_passing.switch.epoch_states import State
from jax_passing.switch.epochs import Epoch, Member
from jax_passing.switch.jobs import JobTable
from jax_passing.switch.outside import Connection, Outside, Timer
from jax_passing.switch.questions import Questions
from jax_passing.switch.uplink import Uplink
from jax_passing.switch.watch import Watch

log = logging.getLogger("jax_passing.switch")

FIRST_MESSAGE_S = 10.0


class ControlPlane:
    """
    Attributes:
      instance: tells this start of this switch from any other.
    """

    def __init__(
        self,
        data_plane: DataPlane,
        outside: Outside,
        *,
        lease_s: float,
        slots_per_job: int,
        link_gbit: float | None = None,
        parent: tuple[str, int] | None = None,
    ):
        self.instance = f"{outside.random_bits(128):032x}"
        self._secret = f"{outside.random_bits(128):032x}"
        self._data_plane = data_plane
        self._outside = outside
        self._parent = parent
        self._slots_per_job = slots_per_job
        self._link_gbit = link_gbit
        self._questions = Questions(data_plane, outside)
        uplink_for = None if parent is None else self._uplink_for
        self._jobs = JobTable(data_plane, outside, lease_s=lease_s, uplink_for=uplink_for)
        self._dispatcher = Dispatcher(data_plane, self._jobs, self._questions, outside, self._abilities)
        self._watch = Watch(data_plane, self._jobs, outside, lease_s)
        self._counts: Counter[str] = Counter()

    def accept(self) -> "MemberConversation":
        """With whoever connects."""
        return MemberConversation(self, self._jobs, self._dispatcher, self._outside, self._counts)

    def hello(self) -> messages.Hello:
        return messages.Hello(messages.PROTOCOL_VERSION, self._data_plane.host, self._data_plane.port, self.instance)

    def admit(self, join: messages.Join | messages.RackJoin, connection: Connection) -> Member:
        """Raises RefusalError."""
        now = self._outside.now()
        address = _packets_of(join, connection, self._data_plane.host or connection.own_host)
        if isinstance(join, messages.RackJoin):
            check_version(join, connection.own_name)
            return Member(connection, join.instance, address, heard=now, alone_since=now, rack=join.name)
        member = Member(connection, join.instance, address, heard=now, alone_since=now, switches=join.switches)
        self._jobs.admit(self.name_of_job(join), rank_of_host(join, connection.host, self._abilities()), member)
        return member

    def name_of_job(self, join: messages.Join | messages.RackJoin) -> str:
        """Here. Each shard of a job is one for itself: two of them, of different racks, may have us as their spine."""
        if isinstance(join, messages.RackJoin):
            return join.job
        shard = join.switches.index(self.instance) if self.instance in join.switches else 0
        return messages.shard_name(join.job, shard)

    def shut_down(self) -> None:
        """Tells every host. Nothing happens by itself any more; connections are left to be closed."""
        self._watch.stop()
        for epoch in self._jobs.epochs():
            text = (
                f"The switch at {epoch.own_name} is shutting down. Start it again, then call jax_passing.init again on "
                "every host."
            )
            self._jobs.fail(epoch, messages.Failed(SwitchLostError.__name__, text))

    def stats(self) -> dict[str, int]:
        """Counters since the start."""
        return dict(self._counts + self._jobs.counts + self._watch.counts)

    def _abilities(self) -> Abilities:
        data_plane = self._data_plane
        return Abilities(
            self.instance,
            self._slots_per_job,
            data_plane.lanes_per_chunk,
            data_plane.whole_chunks,
            self._link_gbit,
        )

    def _uplink_for(self, epoch: Epoch) -> Uplink:
        assert self._parent is not None
        return Uplink(self._parent, epoch, self._jobs, self._questions, self._data_plane, self._outside, self._secret)


class MemberConversation:
    """With a host or a rack's switch, from our greeting to the end."""

    def __init__(
        self, plane: ControlPlane, jobs: JobTable, dispatcher: Dispatcher, outside: Outside, counts: Counter[str]
    ):
        self._plane = plane
        self._jobs = jobs
        self._dispatcher = dispatcher
        self._outside = outside
        self._counts = counts
        self._connection: Connection | None = None
        self._job = ""  # as the member calls it
        self._member: Member | None = None  # once admitted
        self._timer: Timer | None = None
        self._is_over = False

    def opened(self, connection: Connection) -> None:
        self._connection = connection
        connection.send(self._plane.hello())
        self._timer = self._outside.call_later(FIRST_MESSAGE_S, self._on_silence)

    def heard(self, line: bytes) -> None:
        member = self._member
        if self._is_over or (member is not None and (member.gave_up or _is_over(member))):
            return
        try:
            if member is None:
                self._on_first(line)
            else:
                self._dispatcher.dispatch(self._job, member, line)
        except msgspec.DecodeError as error:
            self._refuse_to_understand(error)

    def closed(self, error: Exception | None) -> None:
        assert self._connection is not None
        if self._is_over:
            return
        if isinstance(error, msgspec.DecodeError):
            self._refuse_to_understand(error)
            return
        if error is not None:
            log.info("connection of %s: %s", self._connection.name, error)
        deaf = self._member is not None and self._member.gave_up
        self._end("asks and doesn't read the answers" if deaf else "closed its connection")

    def _on_first(self, line: bytes) -> None:
        assert self._connection is not None
        assert self._timer is not None
        if len(line) > messages.LINE_BYTES_MAX:
            raise msgspec.DecodeError("the first line is too long")
        join = messages.decode_first(line)
        if not isinstance(join, messages.Join | messages.RackJoin):
            raise msgspec.DecodeError(f"the first message is {type(join).__name__}, not Join")
        try:
            self._member = self._plane.admit(join, self._connection)
        except RefusalError as refusal:
            log.warning("refused %s for job %r: %s", self._connection.name, join.job, refusal)
            self._jobs.refused(self._plane.name_of_job(join), str(refusal))
            self._connection.send(messages.Refused(JoinError.__name__, str(refusal)))
            self._end("was refused")
            return
        self._job = join.job
        self._timer.cancel()
        if self._member.rack:
            self._expect_ranks()

    def _on_silence(self) -> None:
        self._refuse_to_understand(msgspec.DecodeError(f"it has said nothing for {FIRST_MESSAGE_S:g} s"))

    def _expect_ranks(self) -> None:
        """A rack's switch has a connection for ranks; without any, only for a while."""
        member = self._member
        assert member is not None
        if member.epoch is None and self._outside.now() - member.alone_since >= FIRST_MESSAGE_S:
            log.info("closing the connection of the switch at %s: it has no ranks", member.rack)
            member.connection.give_up()
        else:
            self._timer = self._outside.call_later(FIRST_MESSAGE_S / 10, self._expect_ranks)

    def _refuse_to_understand(self, error: msgspec.DecodeError) -> None:
        assert self._connection is not None
        self._counts["messages_malformed"] += 1
        log.warning("closing the connection of %s: %s", self._connection.name, error)
        self._end("sent a message that the switch doesn't understand")

    def _end(self, reason: str) -> None:
        assert self._connection is not None
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        member = self._member
        if member is not None:
            for inquiry in list(member.inquiries):
                inquiry.cancel()
            if member.epoch is not None:
                self._jobs.lose(member.epoch, member, reason)
        self._connection.close()


def _is_over(member: Member) -> bool:
    return member.epoch is not None and member.epoch.state is State.OVER


def _packets_of(join: messages.Join | messages.RackJoin, connection: Connection, data_host: str) -> tuple[str, int]:
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

"""The control plane talks with a host or a rack's switch here, from its greeting to the end."""

import logging
import ssl

import msgspec

from jax_passing import job_names
from jax_passing.errors import JoinError
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.alike import protocol_difference
from jax_passing.protocol.keys import HOW_TO_GET_A_KEY
from jax_passing.protocol.outside import Connection, Timer, UnreadError
from jax_passing.switch.jobs.admission import RefusalError
from jax_passing.switch.jobs.epoch_states import EpochState
from jax_passing.switch.jobs.epochs import Member
from jax_passing.switch.jobs.jobs import CRASHED, STANDS_STILL
from jax_passing.switch.meetings.seats import Seat
from jax_passing.switch.operators.operator import HOW_TO_OPERATE
from jax_passing.switch.server.control_plane import ControlPlane
from jax_passing.switch.server.life import Life

log = logging.getLogger("jax_passing.switch")

FIRST_MESSAGE_S = 10.0
# A caller that speaks TLS says so at once. From others we would hear nothing: they wait for our greeting.
PLAIN_GREETING_S = 0.5


class MemberConversation:
    def __init__(self, plane: ControlPlane):
        self._plane = plane
        self._jobs, self._quota = plane.jobs, plane.quota
        self._outside = plane.outside
        self._connection: Connection | None = None
        self._job = ""  # as the member calls it
        self._member: Member | None = None  # once admitted
        self._secured_job = ""  # whose key the other knows, or is about to prove
        self._is_greeted = self._is_secured = False
        self._seat: Seat | None = None  # instead, if it meets others here
        self._timer: Timer | None = None
        self._life = Life(plane.outside)
        self._lifeline: messages.Lifeline | None = None  # if this is one
        self._speaks_for: Life | None = None  # from when its token was found
        self._greeting: Timer | None = None  # in the clear, unless the other begins a handshake
        self._has_entered = False
        self._is_over = False

    @property
    def line_bytes_max(self) -> int:
        """Says how long a line may be. A long one takes room that others can't have: only what rank 0 tells a running
        job may need it."""
        member = self._member
        relays = member is not None and 0 in member.ranks and member.has_started
        return messages.RELAY_LINE_BYTES_MAX if relays else messages.LINE_BYTES_MAX

    def opened(self, connection: Connection) -> None:
        self._connection = connection
        if problem := self._quota.enter(self, connection.host):
            self._turn_away(problem, reason="quota")
            return
        self._has_entered = True
        self._timer = self._outside.call_later(FIRST_MESSAGE_S, self._on_silence)
        if self._plane.has_key:
            self._greeting = self._outside.call_later(PLAIN_GREETING_S, self._greet)
        else:
            self._greet()

    def _greet(self) -> None:
        assert self._connection is not None
        if not self._is_greeted:
            self._is_greeted = True
            self._connection.send(self._plane.hello(self._life.token, self._connection.host))

    def make_room(self, why: str) -> None:
        self._turn_away(f"{why} This one hasn't joined a job, and makes room for a new one.", reason="quota")

    def _turn_away(self, why: str, job: str = "", *, kind: str = JoinError.__name__, reason: str) -> None:
        assert self._connection is not None
        name = self._connection.name
        self._greet()
        who = f"{name} for job {job!r}" if job else f"the connection of {name}"
        self._jobs.chronicle.refused(who, why, job=job, kind=kind, reason=reason)
        self._connection.send(messages.Refused(kind, why))
        self._end("was refused")

    def heard(self, line: bytes) -> None:
        self._greet()
        member = self._member
        if self._is_over or (member is not None and (member.gave_up or _is_over(member))):
            return
        if self._lifeline is not None:
            self._hear_lifeline(self._lifeline)
            return
        self._life.heard()
        try:
            if self._seat is not None:
                self._seat.hear(messages.decode_from_member(line))
            elif member is None:
                self._on_first(line)
            else:
                self._plane.dispatcher.dispatch(self._job, member, line)
        except msgspec.DecodeError as error:
            self._refuse_to_understand(error)

    def closed(self, error: Exception | None) -> None:
        assert self._connection is not None
        self._leave_quota()
        if self._is_over:
            return
        if isinstance(error, msgspec.DecodeError):
            self._refuse_to_understand(error)
            return
        if isinstance(error, ssl.SSLError) and not self._is_secured:
            self._plane.counts["connections_without_key"] += 1
            whose = f"the key of job {self._secured_job!r}" if self._secured_job else "a job's key"
            log.warning("closing the connection of %s: it doesn't know %s (%s)", self._connection.name, whose, error)
        elif error is not None:
            log.debug("connection of %s: %s", self._connection.name, error)
        if self._member is not None and self._member.gave_up:
            reason = "asks and doesn't read the answers"
        elif isinstance(error, UnreadError):
            reason = "stopped reading what the switch tells it"
        else:
            reason = "closed its connection"
        self._end(reason)

    def handshake_begins(self) -> bool:
        assert self._connection is not None
        if self._is_over:
            return False
        if not self._plane.has_key:
            problem = "it has a key, and this switch has none: start both with a key (--key-file), or neither"
        elif self._is_greeted:
            problem = f"it began a handshake only after {PLAIN_GREETING_S:g} s, and has to try again"
        elif problem := self._quota.begin_handshake(self._connection.host, self._outside.now()):
            self._turn_away(problem, reason="quota")
            return False
        else:
            self._is_greeted = True  # by TLS it will be, and until then nothing is said
            return True
        log.warning("closing the connection of %s: %s", self._connection.name, problem)
        self._end("began a handshake")
        return False

    def key_of(self, job: str) -> bytes | None:
        self._secured_job = job
        return self._plane.key_of(job)

    def secured(self) -> None:
        assert self._connection is not None
        self._is_secured = True
        self._quota.end_handshake(self._connection.host, self._outside.now())
        self._connection.send(self._plane.hello(self._life.token, self._connection.host))

    def _check_key(self, join: messages.Join | messages.RackJoin | messages.Meet) -> None:
        """Checks that the other has proved that it knows the job's key. Raises RefusalError. One of another version,
        which may not know how to prove a key, hears of that alone."""
        assert self._connection is not None
        job = join.job
        if not self._plane.has_key:
            return
        if join.protocol_version != messages.PROTOCOL_VERSION:
            versions = messages.PROTOCOL_VERSION, "what joins there", join.protocol_version
            raise RefusalError(protocol_difference(self._connection.own_name, *versions, "it"), "version")
        if not self._is_secured:
            raise RefusalError(f"This switch wants the key of job {job!r}. {HOW_TO_GET_A_KEY}", "key")
        if job_names.base(self._secured_job) != job_names.base(job):
            raise RefusalError(f"The key of job {self._secured_job!r} doesn't open job {job!r}.", "key")

    def _on_first(self, line: bytes) -> None:
        assert self._connection is not None
        assert self._timer is not None
        if len(line) > messages.LINE_BYTES_MAX:
            raise msgspec.DecodeError("the first line is too long")
        try:
            join = messages.decode_first(line)
        except messages.ForeignVersionError as error:
            self._plane.counts["joins_refused"] += 1
            versions = messages.PROTOCOL_VERSION, "what joins there", error.version
            self._turn_away(protocol_difference(self._connection.own_name, *versions, "it"), reason="version")
            return
        if isinstance(join, messages.StatusQuery):
            self._tell_status(join)
            return
        if isinstance(join, messages.Lifeline):
            self._lifeline = join
            self._hear_lifeline(join)
            return
        if isinstance(join, messages.Command):
            self._on_command(join)
            return
        if isinstance(join, messages.Meet | messages.RackMeet):
            self._on_meet(join)
            return
        if not isinstance(join, messages.Join | messages.RackJoin):
            raise msgspec.DecodeError(f"the first message is {type(join).__name__}, not Join")
        try:
            self._check_key(join)
            self._member = self._plane.admit(join, self._connection)
        except RefusalError as refusal:
            self._jobs.refused(self._plane.name_of_job(join), str(refusal))
            self._turn_away(str(refusal), join.job, kind=refusal.kind, reason=refusal.reason)
            return
        self._job = join.job
        self._quota.joined(self, self._connection.host)
        self._timer.cancel()
        self._expect_heartbeats(join.lease_s)
        if self._member.rack:
            self._expect_ranks()

    def _tell_status(self, query: messages.StatusQuery) -> None:
        """Tells of all jobs, or of the one whose key the other knows."""
        assert self._connection is not None
        if self._plane.has_key and not self._is_secured:
            why = f"This switch tells its status to those who have its key, or a job's. {HOW_TO_GET_A_KEY}"
            self._turn_away(why, reason="key")
            return
        is_operator = not self._plane.has_key or self._secured_job == job_names.OPERATOR
        job = None if is_operator else job_names.base(self._secured_job)
        self._connection.send(self._plane.report.answer(query, job))
        self._end("was told the status")

    def _hear_lifeline(self, said: messages.Lifeline) -> None:
        """A token is good for one lifeline: it has been heard in the clear since. The host may not have joined yet."""
        assert self._connection is not None
        assert self._timer is not None
        if self._speaks_for is None and (life := self._plane.lives.pop(said.token, None)) is not None:
            life.takes(self._end)
            self._speaks_for = life
            self._timer.cancel()
            self._leave_quota()  # the host's own connection counts
        if self._speaks_for is not None:
            self._speaks_for.heard_on_lifeline()

    def _on_command(self, command: messages.Command) -> None:
        """Does what an owner of a key says. Without one nobody proves anything by the network: operators/local.py."""
        connection = self._connection
        assert connection is not None
        is_operator = self._is_secured and self._secured_job == job_names.OPERATOR
        owned = None if is_operator else job_names.base(self._secured_job)
        who = "who has the switch's key" if is_operator else f"who has the key of job {owned!r}"
        try:
            if not self._is_secured:
                raise RefusalError(
                    f"Operators prove who they are, and {connection.name} hasn't. {HOW_TO_OPERATE}", "key"
                )
            done = self._plane.operator.carry_out(command, f"{who}, at {connection.name}", connection.own_name, owned)
        except RefusalError as refusal:
            self._turn_away(str(refusal), command.job, kind=refusal.kind, reason=refusal.reason)
            return
        connection.send(done)
        self._end("has said what to do")

    def _on_meet(self, first: messages.Meet | messages.RackMeet) -> None:
        assert self._connection is not None
        assert self._timer is not None
        said = first.said if isinstance(first, messages.RackMeet) else first
        if said is None:
            raise msgspec.DecodeError("a seat is given up before there is any")
        try:
            self._check_key(said)
            self._seat = self._plane.meetings.seat(said.job, self._connection, is_racks=first is not said)
        except RefusalError as refusal:
            self._plane.counts["joins_refused"] += 1
            self._turn_away(str(refusal), said.job, kind=refusal.kind, reason=refusal.reason)
            return
        self._timer.cancel()
        self._quota.joined(self, self._connection.host)
        self._job = said.job
        self._expect_heartbeats(said.lease_s)
        self._seat.hear(first)

    def _expect_heartbeats(self, lease_s: float) -> None:
        self._life.expect(min(lease_s, self._plane.lease_s), self._on_lease_over)
        self._plane.lives[self._life.token] = self._life

    def _on_lease_over(self) -> None:
        assert self._connection is not None
        member, reason = self._member, f"was silent for {self._life.lease_s:g} s"
        log.debug("closing the connection of %s: it %s", self._connection.name, reason)
        if member is not None and not member.rack and not member.has_started:
            text = (
                f"This host {reason} while it waited to join job {self._job!r}, and another one may have taken its "
                "rank. It stood still, or its network was cut. Call jax_passing.init again."
            )
            self._connection.send(messages.Refused(JoinError.__name__, text))
        self._end(reason, STANDS_STILL)

    def _on_silence(self) -> None:
        if self._lifeline is not None:
            self._end("has the lifeline of a host that isn't here")
            return
        self._refuse_to_understand(msgspec.DecodeError(f"its first message hasn't come within {FIRST_MESSAGE_S:g} s"))

    def _expect_ranks(self) -> None:
        """Looks whether a rack's switch has ranks: without any it may stay for a while only."""
        member = self._member
        assert member is not None
        if member.epoch is None and self._outside.now() - member.alone_since >= FIRST_MESSAGE_S:
            log.debug("closing the connection of the switch at %s: it has no ranks", member.rack)
            member.connection.give_up()
        else:
            self._timer = self._outside.call_later(FIRST_MESSAGE_S / 10, self._expect_ranks)

    def _refuse_to_understand(self, error: msgspec.DecodeError) -> None:
        assert self._connection is not None
        self._plane.counts["messages_malformed"] += 1
        log.warning("closing the connection of %s: %s", self._connection.name, error)
        self._end("sent a message that the switch doesn't understand")

    def _leave_quota(self) -> None:
        assert self._connection is not None
        if self._has_entered:
            self._has_entered = False
            self._quota.leave(self, self._connection.host)

    def _end(self, reason: str, likely: str = CRASHED) -> None:
        assert self._connection is not None
        if self._is_over:
            return
        self._is_over = True
        self._quota.joined(self, self._connection.host)  # it can't make room, and counts until it has read all
        self._plane.lives.pop(self._life.token, None)
        self._life.end()
        if self._speaks_for is not None:
            self._speaks_for.loses_lifeline()
            self._speaks_for = None
        for timer in (self._timer, self._greeting):
            if timer is not None:
                timer.cancel()
        if self._seat is not None:
            self._seat.leave()
        member = self._member
        if member is not None:
            for inquiry in list(member.inquiries):
                inquiry.cancel()
            if member.epoch is not None:
                self._jobs.lose(member.epoch, member, reason, likely)
        self._connection.close()


def _is_over(member: Member) -> bool:
    return member.epoch is not None and member.epoch.state is EpochState.OVER

"""A host is a member of a job at its switches: it joins, hears and tells, fails, and leaves. This does no I/O."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from jax_passing.config import PREFIX, address_text
from jax_passing.errors import (
    ConfigError,
    DeadlineExceededError,
    Failure,
    JoinError,
    PassingError,
    SwitchLostError,
    SwitchUnreachableError,
    failure_of,
)
from jax_passing.host.control import blame, programs, stalls
from jax_passing.host.control.contact import DEADLINE_GRACE_S, Redial
from jax_passing.host.control.context import HostContext
from jax_passing.host.control.non_finite import of_non_finite
from jax_passing.host.control.outside import PacketSocket, Transport
from jax_passing.host.control.stalls import Wait
from jax_passing.protocol import alike, keys
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.alike import protocol_difference
from jax_passing.protocol.caller import CallEvent, Greeted, Heard, Lost
from jax_passing.protocol.keys import NONCE_BYTES
from jax_passing.protocol.outside import Timer

if TYPE_CHECKING:
    from jax_passing._native import NonFinite, ProgramInfo, Stall

log = logging.getLogger("jax_passing")

ANSWER_S = 1.0  # to a question; a switch has less patience with the others that it asks
LATE_S = 1.0  # for a timer
LEFT_LOOK_S = 0.05  # between two looks for a sum that can't be completed, once a rank has left
LANES_BEHIND_MAX = 3  # those of the data, in a packet (LanesBehind in xla_ffi/host/job_config.h)
CONNECTED_S = 5.0  # a switch hangs up on a host that says nothing for 10 s


@dataclass(frozen=True)
class MemberJoined:
    membership: "Membership"


@dataclass(frozen=True)
class MemberNotJoined:
    """The membership is closed."""

    membership: "Membership"
    error: PassingError


@dataclass(frozen=True)
class MemberFailed:
    """This comes once, and not before MemberJoined."""

    membership: "Membership"
    failure: Failure


@dataclass(frozen=True)
class AllLeft:
    """All ranks of the job have left, as this one."""

    membership: "Membership"


MemberEvent = MemberJoined | MemberNotJoined | MemberFailed | AllLeft


class Shard:
    """This host's share of a job at one switch begins by calling that switch.

    Attributes:
      name: the switch's address, for people.
      calls: of the switch; the last one counts.
      hello: its greeting; None as long as there is no connection.
      socket: for packets; from `open_socket` on.
      welcome: what the switch settled; None until then.
      is_over: the switch has said Bye.
    """

    socket: PacketSocket

    def __init__(self, context: HostContext, address: tuple[str, int], report: Callable[["Shard", CallEvent], None]):
        """`report`: takes what happens at the call, and asks `receive` what it means."""
        self._outside, self._settings = context.outside, context.settings
        self.name = address_text(*address)
        self.hello: messages.Hello | None = None
        self._welcome: messages.Welcome | None = None
        self.is_over = False
        self._join: messages.Join | None = None
        self._wait: Wait | None = None
        self._patience: Timer | None = None  # the switch's with us, who haven't joined
        self._has_socket = False
        deadline_s = self._settings.join_deadline_s
        self.calls = Redial(
            self._outside, address, partial(report, self), job=context.job, key=context.key, deadline_s=deadline_s
        )
        self.calls.call()

    @property
    def welcome(self) -> messages.Welcome:
        assert self._welcome is not None
        return self._welcome

    @property
    def is_welcomed(self) -> bool:
        return self._welcome is not None

    @property
    def link_gbit(self) -> float | None:
        """Returns the rate of this host's link to it; None if it isn't known."""
        return self.calls.contact.connection.link_gbit

    @property
    def own_host(self) -> str:
        """Returns this host's address on the way to it."""
        return self.calls.contact.connection.own_host

    def receive(self, event: CallEvent) -> Greeted | messages.Welcome | Heard | Lost | PassingError | None:
        """Returns what an event of the call means for the job.

        Greeted: the shard may be joined; it comes again if the switch was called anew. Welcome: it is joined. Heard,
        Lost: the switch has said this, or is lost, when the shard was joined. PassingError: it can't be joined. None:
        nothing. Raises ConnectionRefusedError if the switch is to be called again.
        """
        match event:
            case Greeted(hello):
                self.hello = hello
                self._patience = self._outside.call_later(CONNECTED_S, self._call_anew)
                return event
            case Heard() if self.is_welcomed:
                return event
            case Heard(message) if self._join is not None:
                return self._on_answer(message)
            case Heard(messages.Refused(_, text)):  # as a connection too many; it may be called again
                raise ConnectionRefusedError(f"it says: {text}")
            case Lost(error):
                self._stop_waiting()
                if self.is_welcomed:
                    return None if self.is_over else event
                if self._join is not None:
                    return self.why_not_joined(error)
                self.hello = None
                return self.calls.failed(error)
        return None

    def _call_anew(self) -> None:
        """Calls again, as another of the job's switches was started late, and this one would lose patience with us."""
        self.calls.contact.close()
        self.hello = None
        self.calls.call()

    def open_socket(self) -> None:
        """Raises SwitchUnreachableError."""
        assert self.hello is not None
        host, port = self.hello.data_host or self.calls.contact.connection.host, self.hello.data_port
        try:
            self.socket = self._outside.open_socket(host, port)
        except OSError as error:
            raise SwitchUnreachableError(
                f"Can't open a UDP socket to the switch's {address_text(host, port)}: {error}."
            ) from error
        self._has_socket = True

    # The join.

    def join(self, join: messages.Join) -> None:
        """Waits for all ranks, and logs for whom after `warn_s`."""
        who = f"Rank {join.rank} of job {join.job!r}"
        self._stop_waiting()
        self._join = join
        self._wait = Wait(self._outside, self.send, who, self.name, join.join_deadline_s, self._settings.warn_s)
        self.send(join)
        self.calls.contact.keep_alive(join.lease_s)

    def why_not_joined(self, error: Exception, silent: type[PassingError] = SwitchLostError) -> PassingError:
        """Returns what to tell the user if the call has ended so while this host waited for the others. `silent`: what
        it is if the switch said nothing; hosts that meet do so again if it is lost."""
        join, hello = self._join, self.hello
        assert join is not None
        assert hello is not None
        if (version := hello.protocol_version) != join.protocol_version:  # it didn't understand us, or we it
            who = f"rank {join.rank} of job {join.job!r}"
            return JoinError(protocol_difference(self.name, version, who, join.protocol_version, "that host"))
        if isinstance(error, TimeoutError):
            return silent(
                f"The switch at {self.name} said nothing any more while rank {join.rank} waited to join job "
                f"{join.job!r} ({error}). It is stopped, or the network between is cut. Look at the switch, then call "
                "jax_passing.init again."
            )
        return (SwitchLostError if isinstance(error, OSError) else JoinError)(
            f"The switch at {self.name} ended the connection while rank {join.rank} waited to join job {join.job!r}: "
            f"{error}. Look at the switch's log."
        )

    def _on_answer(self, message: messages.FromParent) -> messages.Welcome | PassingError | None:
        """Takes what the switch says of the join."""
        match message:
            case messages.SlotState():
                assert self._wait is not None
                self._wait.warn(message)
            case messages.GroupOffer():
                self._on_offer(message)
            case messages.Welcome():
                self._stop_waiting()
                self._welcome = message
                if not message.multicast:
                    self.socket.leave_group()
                return message
            case messages.Refused(kind, text):
                return Failure(kind, text).exception()
            case messages.Failed(kind, text, ranks):
                return Failure(kind, text, ranks).exception()
            case _:
                what = type(message).__name__
                return JoinError(f"The switch at {self.name} answered {what} to a join. Do the versions match?")
        return None

    def _on_offer(self, offer: messages.GroupOffer) -> None:
        """Listens to the group, until it has been heard or the switch says something else."""
        nonce = offer.nonce
        try:
            self.socket.join_group(offer, lambda: self.send(messages.GroupHeard(nonce)))
        except (OSError, ValueError) as error:
            self.send(messages.GroupReady(nonce, str(error)))
        else:
            self.send(messages.GroupReady(nonce))

    # The conversation.

    def send(self, message: messages.Message) -> None:
        self.calls.contact.send(message)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        if self._wait is not None:
            self._wait.stop()

    def close(self) -> None:
        """Hangs up, after what was sent."""
        self._stop_waiting()
        self.calls.close()
        if self._has_socket:
            self.socket.close()


def _agree(what: str, shards: Sequence[Shard], values: Sequence[int]) -> int:
    """Returns what every shard can do."""
    if len(set(values)) > 1:
        offers = ", ".join(f"{value} at {shard.name}" for shard, value in zip(shards, values, strict=True))
        log.warning("the switches differ in %s (%s): taking the least", what, offers)
    return min(values)


class Membership:
    """A membership begins by calling the switches. It reports MemberEvents, unless it is closed first.

    The job's positions are spread over its switches, the shards. The first one is more: it relays rank 0's order.

    Attributes:
      shards: at the job's switches, in their order.
      epoch: incarnation of the job, at the first switch.
      link_gbit: the slowest host's link, None if no host knows its own. The same on all hosts.
      switch_link_gbit: the slowest of the switches' links, None if they have a port for each host. The same on all
        hosts.
      transport: its sums.
    """

    transport: Transport
    epoch: int
    link_gbit: float | None
    switch_link_gbit: float | None

    def __init__(self, context: HostContext):
        settings = context.settings
        assert settings.switch is not None
        self._context, self._outside, self._settings = context, context.outside, settings
        self._until = self._outside.now() + settings.join_deadline_s
        self._has_begun = self._is_closed = False
        self._failure: Failure | None = None
        self._unread: list[tuple[Shard, messages.FromParent]] = []  # what came before all shards were joined
        self._asked: tuple[Stall, float] | None = None  # the stall that its switch is asked about
        self._timer: Timer | None = None  # of the join, then of an answer
        self._look: Timer | None = None  # when it looks for a sum that can't be completed, as a rank has left
        self._has_left = False
        self._ledger = programs.Ledger(settings.rank)
        is_confidential = context.hosts_key is not None
        self._nonce = self._outside.random_bits(8 * NONCE_BYTES).to_bytes(NONCE_BYTES) if is_confidential else b""
        self.shards = [Shard(context, address, self._on_call) for address in settings.switch]

    def _on_call(self, shard: Shard, event: CallEvent) -> None:
        match shard.receive(event):
            case Greeted():
                self._join_if_all_greeted()
            case messages.Welcome():
                if all(each.is_welcomed for each in self.shards):
                    self._begin()
            case PassingError() as error:
                self._not_joined(error)
            case Heard(message) if self._has_begun:
                self._take(shard, message)
            case Heard(messages.Failed(kind, text, ranks)):
                failure = blame.for_host(Failure(kind, text, ranks), self._settings.rank, self._context)
                self._not_joined(failure.exception(), shard)
            case Heard(message):
                self._unread.append((shard, message))
            case Lost(error):
                self._lost(shard, str(error))

    # Joining.

    def _join_if_all_greeted(self) -> None:
        """Joins all at once when all are there: had one to be joined before the next, two orders of the list would wait
        for each other."""
        try:
            self._check_distinct()
            if any(each.hello is None for each in self.shards):
                return
            for each in self.shards:
                each.open_socket()
        except PassingError as error:
            self._not_joined(error)
            return
        self._context.note("asks", "asks to join")
        for each in self.shards:
            each.join(self._join(each))
        self._expect_welcomes(self._join_s + DEADLINE_GRACE_S)

    @property
    def _join_s(self) -> float:
        return max(0.1, self._until - self._outside.now())

    def _expect_welcomes(self, wait_s: float) -> None:
        due_s = self._outside.now() + wait_s
        self._timer = self._outside.call_later(wait_s, partial(self._on_join_deadline, due_s))

    def _on_join_deadline(self, due_s: float) -> None:
        if self._outside.now() > due_s + LATE_S:  # this process stood still, perhaps with the switch
            self._expect_welcomes(DEADLINE_GRACE_S)
            return
        late = next(shard for shard in self.shards if not shard.is_welcomed)
        waited_s = self._outside.now() - self._until + self._settings.join_deadline_s
        self._not_joined(late.why_not_joined(TimeoutError(f"it waited {waited_s:.1f} s"), JoinError))

    def _check_distinct(self) -> None:
        by_instance: dict[str, Shard] = {}
        for shard in self.shards:
            if shard.hello is not None and (other := by_instance.setdefault(shard.hello.instance, shard)) is not shard:
                raise ConfigError(f"{other.name} and {shard.name} are one switch. List each of a job's switches once.")

    def _join(self, shard: Shard) -> messages.Join:
        settings = self._settings
        return messages.Join(
            protocol_version=messages.PROTOCOL_VERSION,
            job=self._context.job,
            rank=settings.rank,
            world_size=settings.world_size,
            switches=tuple(each.hello.instance for each in self.shards if each.hello is not None),
            udp_port=shard.socket.port,
            instance=self._outside.instance,
            join_deadline_s=self._join_s,
            link_gbit=settings.link_gbit or shard.link_gbit,
            lease_s=settings.lease,
            alike=alike.facts(settings, self._context.device_count, self._context.hosts_key),
            started_as=self._context.started_as,
            host_name=self._outside.host_name,
            host_nonce=self._nonce,
        )

    def _not_joined(self, error: PassingError, source: Shard | None = None) -> None:
        """`source`: the switch that said so."""
        if not self._is_closed:
            self._tell(failure_of(error), source)
            self.close()
            self._context.events.add(MemberNotJoined(self, error))

    def _begin(self) -> None:
        settings, welcomes = self._settings, [shard.welcome for shard in self.shards]
        assert self._timer is not None
        self._timer.cancel()
        self.epoch = welcomes[0].epoch
        self.link_gbit = min((gbit for welcome in welcomes if (gbit := welcome.link_gbit)), default=None)
        self.switch_link_gbit = min((gbit for welcome in welcomes if (gbit := welcome.switch_link_gbit)), default=None)
        self._stalls = stalls.StallReporter(
            rank=settings.rank,
            epoch=self.epoch,
            switches=[shard.name for shard in self.shards],
            programs=self._ledger.waiting,
            is_elastic=self._context.met is not None,
            note=partial(self._context.note, "stall"),
        )
        try:
            self.transport = self._start_transport(welcomes)
        except JoinError as error:
            self._not_joined(error)
            return
        except ValueError as error:
            self._not_joined(JoinError(f"The switch's welcome makes no sense: {error}. Do the versions match?"))
            return
        self._has_begun = True
        joined = f"joined job {settings.job}: rank {settings.rank} of {settings.world_size}, epoch {self.epoch}"
        log.info("%s", joined)
        self._context.note(
            "joined",
            joined,
            rank=settings.rank,
            world_size=settings.world_size,
            epoch=self.epoch,
            address=self.shards[0].own_host,
            switches=[shard.name for shard in self.shards],
        )
        self._context.events.add(MemberJoined(self))
        unread, self._unread = self._unread, []
        for shard, message in unread:
            self._take(shard, message)

    def _start_transport(self, welcomes: Sequence[messages.Welcome]) -> Transport:
        shards, settings = self.shards, self._settings
        slots = _agree("slots of a job", shards, [welcome.slot_count for welcome in welcomes])
        return self._outside.start_transport(
            shards,
            self,
            job=self._context.job,
            rank=settings.rank,
            world_size=settings.world_size,
            # The window is as wide as that of one switch: it has to cover this host's link, however many share its
            # traffic. A wider one lets hosts drift apart, and their queues fill. A shard's slots are a power of two.
            slots_per_shard=1 << max(0, (slots // len(shards)).bit_length() - 1),
            lanes_per_chunk=_agree("lanes of a chunk", shards, [welcome.lanes_per_chunk for welcome in welcomes]),
            check_key=self._check_key(welcomes),
            mask_key=self._mask_key(welcomes),
            seed=settings.seed,
            check_nans=settings.check_nans,
            warn_s=settings.warn_s,
            deadline_s=settings.deadline_s,
        )

    def _check_key(self, welcomes: Sequence[messages.Welcome]) -> bytes | None:
        """Returns None if sums aren't checked. All hosts decide alike, as their welcomes say the same of this."""
        wanted = self._settings.check_sums
        if wanted is None:
            # A switch that changes a sum, and sees whether hosts refuse it, learns something of the exponents in it.
            is_confidential = self._context.hosts_key is not None
            has_no_tags = any(welcome.packet_keys is None for welcome in welcomes)
            wanted = is_confidential or (self._context.key is not None and has_no_tags)
        if not wanted:
            return None
        # The switch knows the job's key, but not the hosts'.
        nonces = [welcome.nonce for welcome in welcomes]
        return keys.check_key(self._context.hosts_key or self._context.key, nonces)

    def _mask_key(self, welcomes: Sequence[messages.Welcome]) -> bytes | None:
        """Returns None if sums aren't confidential.

        Raises:
          JoinError: a switch leaves out our own randomness, and by the key of an earlier epoch that one's sums could be
            read; or the other hosts have a key, and this one hasn't; or packets are too short for as many ranks.
        """
        if self._context.hosts_key is None:
            # An honest switch refuses such hosts by their facts. Another one would read what this host sends.
            if any(welcome.host_nonces for welcome in welcomes):
                raise JoinError(
                    "The other hosts' sums are confidential, and this host has no key for that, which the switch "
                    f"should have noticed. Give all hosts of the job the same file ({PREFIX}HOSTS_KEY_FILE)."
                )
            return None
        nonces, rank, world_size = welcomes[0].host_nonces, self._settings.rank, self._settings.world_size
        are_all_there = len(nonces) == world_size and {len(nonce) for nonce in nonces} == {NONCE_BYTES}
        if not are_all_there or nonces[rank] != self._nonce or any(each.host_nonces != nonces for each in welcomes):
            raise JoinError(
                "The switch's welcome doesn't have the random numbers of all hosts, which confidential sums need. It "
                "isn't what hosts and switches of jax_passing say: don't use this switch."
            )
        if world_size > (most := min(welcome.lanes_per_chunk for welcome in welcomes) - LANES_BEHIND_MAX):
            raise JoinError(
                f"Confidential sums of {world_size} ranks need a lane for each in a packet, and this switch's packets "
                f"have room for {most}. Use switches with longer ones (--lanes-per-chunk), or fewer ranks."
            )
        return keys.mask_key(self._context.hosts_key, self._context.job, nonces)

    # Switches say this.

    def _take(self, shard: Shard, message: messages.FromParent) -> None:
        match message:
            case _ if self._is_closed:
                pass
            case messages.Relay(payload) if shard is self.shards[0]:
                try:
                    self._on_relay(payload)
                except msgspec.DecodeError as error:
                    self._lost(shard, str(error))
            case messages.SlotState() if self._asked is not None and self.shards[self._asked[0].shard] is shard:
                self._on_answer(message)
            case messages.Failed(kind, text, ranks):
                # The host that missed a sum at its deadline doesn't know what this one waits for instead.
                also = self._ledger.waiting() if kind == DeadlineExceededError.__name__ else ""
                self.fail(Failure(kind, f"{text} {also}".rstrip(), ranks), source=shard)
            case messages.Left():
                self._look_beyond(message)
            case messages.Awaited():
                self._stalls.awaited(message, self._outside.now())
            case messages.WriteRecord() if shard is self.shards[0]:
                self._context.journal.on_wanted(self._context.job)
            case messages.Bye():
                shard.is_over = True
                if all(each.is_over for each in self.shards):
                    self._context.events.add(AllLeft(self))

    def _on_relay(self, payload: bytes) -> None:
        """Takes what rank 0 relays. Raises msgspec.DecodeError."""
        kind, content = payload[:1], payload[1:]
        if kind == messages.RELAYED_ORDER:
            self.transport.deliver_order_message(content)
        elif kind == messages.RELAYED_PROGRAM:
            self._check(self._ledger.rank_0s(programs.decode(content)))
        else:
            raise msgspec.DecodeError(f"rank 0 relays something of the unknown kind {kind!r}")

    def _check(self, failure: Failure | None) -> None:
        if failure is not None:
            self.fail(blame.as_found(failure, self._settings.rank, self._context))

    def _lost(self, shard: Shard, reason: str) -> None:
        text = (
            f"Rank {self._settings.rank} lost the switch at {shard.name} (job {self._settings.job!r}, epoch "
            f"{shard.welcome.epoch}): {reason}. Look at the switch's log, restart it if it died, then call "
            "jax_passing.init again on every host."
        )
        if self._has_begun:
            self.fail(Failure(SwitchLostError.__name__, text))
        else:
            self._not_joined(SwitchLostError(text))

    # The transport asks this.

    def order(self, payload: bytes) -> None:
        self.shards[0].send(messages.Relay(messages.RELAYED_ORDER + payload))

    def program(self, info: "ProgramInfo") -> None:
        program = programs.bounded(info)
        if self._settings.rank == 0:
            self.shards[0].send(messages.Relay(messages.RELAYED_PROGRAM + programs.encode(program)))
        else:
            self._check(self._ledger.own(program))

    def stalled(self, stall: "Stall", stalled_s: float) -> None:
        if self._asked is None and not self._is_closed:
            self._asked = stall, stalled_s
            self._timer = self._outside.call_later(ANSWER_S, lambda: self._on_answer(None))
            self.shards[stall.shard].send(stalls.question(stall))

    def _on_answer(self, state: messages.SlotState | None) -> None:
        """Takes what the switch says of the stall; None: nothing."""
        assert self._asked is not None
        assert self._timer is not None
        self._timer.cancel()
        (stall, stalled_s), self._asked = self._asked, None
        note, failure = self._stalls.report(stall, stalled_s, state)
        self.transport.note_stall(note)
        self._check(failure)

    def _look_beyond(self, left: messages.Left) -> None:
        """Looks for a sum that can't be completed, as a rank has left: now, and again as long as this one stays.

        A sum needs all ranks, and a rank leaves when its sums are complete. So this host has the same sums, or has
        started one that the other one never will.
        """
        if self._look is not None:
            self._look.cancel()
        if self._is_closed or self._failure is not None or self._has_left or left.sums is None:
            return
        if self.transport.stats()["sums_started"] > left.sums:
            self.fail(self._stalls.left_behind(left))
        else:
            self._look = self._outside.call_later(LEFT_LOOK_S, partial(self._look_beyond, left))

    def group_lost(self, shard: int) -> None:
        log.warning("results of %s come by multicast no longer; telling it", self.shards[shard].name)
        self.shards[shard].send(messages.GroupLost())

    def non_finite(self, first: "NonFinite") -> None:
        self.fail(of_non_finite(first, self._settings.rank, self._outside.host_name))

    def transport_failed(self, kind: str, message: str) -> None:
        self.fail(blame.as_found(Failure(kind, message), self._settings.rank, self._context, in_sums=True))

    # Failing and leaving.

    def fail(self, failure: Failure, *, tell: bool = True, source: Shard | None = None) -> None:
        """Fails all sums; the first failure wins. Tells the switches, which tell the other hosts.

        `source`: the switch that said so. The others are told as well: they see us hang up, and would name us.
        """
        if self._failure is not None or self._is_closed:
            return
        self._failure = own = blame.for_host(failure, self._settings.rank, self._context)
        if tell:
            self._tell(failure, source)
        self._context.journal.failed(self._outside.now(), self._context.job, own)  # while its sums are as they were
        self.transport.fail(own.kind, own.message)
        self._context.events.add(MemberFailed(self, own))

    def _tell(self, failure: Failure, source: Shard | None) -> None:
        """Tells the switches before anybody here learns of it, and hangs up: else the others would only hear of a lost
        host. (Seeds 495 and 4259 of the simulator.)"""
        for shard in self.shards:
            if shard is not source and shard.is_welcomed:
                shard.send(messages.Fail(failure.kind, failure.message[: 8 * 1024], failure.ranks))

    @property
    def failure(self) -> Failure | None:
        """Returns why sums fail from now on, if so. May be asked on any thread."""
        if self._failure is not None or self._is_closed or not self._has_begun:
            return self._failure
        noticed = self.transport.failure()  # its event may not have come yet
        return self._failure or (Failure(*noticed) if noticed else None)

    def leave(self) -> None:
        """Tells the switches that there will be no more sums. Those that were started are complete."""
        self._has_left = True
        self._context.note("left", "wants no more sums")
        leave = messages.Leave(self.transport.stats()["sums_started"] if self._has_begun else None)
        for shard in self.shards:
            if shard.is_welcomed:
                shard.send(leave)

    def close(self) -> None:
        """Fails what is pending. Bounded in time."""
        if self._is_closed:
            return
        self._is_closed = True
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()
        for shard in self.shards:
            shard.close()
        if self._has_begun:
            self.transport.close()

"""A host is a member of a job at its switches: it joins, hears and tells, fails, and leaves. This does no I/O."""

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from jax_passing.errors import (
    DeadlineExceededError,
    Failure,
    JoinError,
    PassingError,
    SwitchLostError,
    failure_of,
)
from jax_passing.host.control import blame, epoch_transport, programs, stalls
from jax_passing.host.control.contact import DEADLINE_GRACE_S
from jax_passing.host.control.context import HostContext
from jax_passing.host.control.non_finite import of_non_finite
from jax_passing.host.control.outside import Transport
from jax_passing.host.control.shard import Shard, least_lanes, least_planes, open_paths
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.caller import CallEvent, Greeted, Heard, Lost
from jax_passing.protocol.outside import Timer

if TYPE_CHECKING:
    from jax_passing._native import NonFinite, ProgramInfo, Stall

log = logging.getLogger("jax_passing")

LATE_S = 1.0  # for a timer
LEFT_LOOK_S = 0.05  # between two looks for a sum that can't be completed, once a rank has left


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


class Membership:
    """A membership begins by calling the switches. It reports MemberEvents, unless it is closed first.

    The job's positions are spread over its switches, the shards. The first one is more: it relays the order of sums.

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
        self._timer: Timer | None = None  # of the join
        self._look: Timer | None = None  # when it looks for a sum that can't be completed, as a rank has left
        self._has_left = False
        self._ledger = programs.Ledger(settings.rank)
        self._nonce = epoch_transport.new_nonce(context)
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
            open_paths(self.shards, self._join_if_paths_are_known)
        except PassingError as error:
            self._not_joined(error)

    def _join_if_paths_are_known(self) -> None:
        if self._is_closed or (lanes := least_lanes(self.shards)) is None:
            return
        self._context.note("asks", "asks to join")
        join_s = max(0.1, self._until - self._outside.now())
        switches = tuple(each.hello.instance for each in self.shards if each.hello is not None)
        planes = least_planes(self.shards)
        for each in self.shards:
            each.join(switches, planes, lanes, join_s, self._nonce)
        self._expect_welcomes(join_s + DEADLINE_GRACE_S)

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
            self._outside,
            rank=settings.rank,
            epoch=self.epoch,
            switches=[shard.name for shard in self.shards],
            data=epoch_transport.data_names(self.shards),
            ask=lambda shard, query: self.shards[shard].send(query),
            told=self._on_stall,
            programs=self._ledger.waiting,
            is_elastic=self._context.met is not None,
            note=partial(self._context.note, "stall"),
        )
        try:
            self.transport = epoch_transport.start(self._context, self.shards, self, self._nonce)
        except JoinError as error:
            self._not_joined(error)
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
            case messages.SlotState():
                self._stalls.answer(self.shards.index(shard), message)
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
        """Takes what rank 0 says, or what others say to it. Raises msgspec.DecodeError."""
        kind, content = payload[:1], payload[1:]
        if kind == messages.RELAYED_ORDER:
            self.transport.deliver_order_message(content)
        elif kind == messages.RELAYED_PROGRAM and self._settings.rank > 0:
            self._check(self._ledger.rank_0s(programs.decode(content)))
        else:
            raise msgspec.DecodeError(f"a host relays something of the unknown kind {kind!r}")

    def _check(self, failure: Failure | None) -> None:
        if failure is not None:
            self.fail(blame.as_found(failure, self._settings.rank, self._context))

    def _lost(self, shard: Shard, reason: str) -> None:
        text = shard.why_lost(reason)
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
        if not self._is_closed:
            self._stalls.ask(stall, stalled_s)

    def _on_stall(self, note: str, failure: Failure | None) -> None:
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
        switch = self.shards[shard // epoch_transport.planes_of(self.shards)]
        log.warning("results of %s come by multicast no longer; telling it", switch.name)
        switch.send(messages.GroupLost())

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
            self._stalls.stop()
            self.transport.close()

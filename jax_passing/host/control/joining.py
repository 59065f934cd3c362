"""A session joins its job: with the hosts that it has met before, where it is elastic or has a standby. This does no
I/O."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jax_passing.config import Settings
from jax_passing.errors import (
    AuthenticationError,
    HostLostError,
    InterruptionError,
    JoinError,
    NoSlotsError,
    PassingError,
    SwitchLostError,
    SwitchUnreachableError,
    TooFewHostsError,
)
from jax_passing.host.control import blame
from jax_passing.host.control.contact import RETRY_S
from jax_passing.host.control.context import Events, HostContext
from jax_passing.host.control.meeting import Meeting, Met, NotMet, Rehearses, SeatLost
from jax_passing.host.control.membership import MemberEvent, MemberFailed, Membership
from jax_passing.host.control.outside import HostOutside
from jax_passing.host.control.ranks import Ranks, device_ranks
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.caller import CONNECT_TIMEOUT_S
from jax_passing.protocol.outside import Timer

log = logging.getLogger("jax_passing")


class Joined(NamedTuple):
    """`ranks` are those of this process in a new epoch of the job. The others become attributes of the session."""

    ranks: Ranks
    rank: int
    world_size: int
    step: int | None = None
    survivors: int = 0


class Rehearsing(NamedTuple):
    """The job runs without this host, which compiles its programs as this rank, and then joins again.

    `device_ranks`: how many of its devices will have ranks of their own.
    """

    rank: int
    world_size: int
    device_ranks: int


class Joining:
    """One session joins by this: once, or again whenever it rejoins.

    Attributes:
      journal: has what happened to it.
    """

    def __init__(
        self,
        outside: HostOutside,
        settings: Settings,
        device_count: int = 0,
        key: bytes | None = None,
        hosts_key: bytes | None = None,
    ):
        """`key`: the job's, if there is one. `hosts_key`: that of confidential sums."""
        self._context = HostContext(outside, settings, Events(self._on), key, device_count, hosts_key=hosts_key)
        self._outside, self._settings, self.journal = outside, settings, self._context.journal
        self._meeting = Meeting(self._context) if settings.standby or self._is_elastic else None
        self._ranks: Ranks | None = None  # of the last join, or on their way
        self._is_over = self._has_joined = False
        self._retry: Timer | None = None
        self._greetings: Timer | None = None  # of the switches, once the hosts have met

    @property
    def met(self) -> messages.Met | None:
        """Returns what was agreed on when the hosts met last; None if they haven't."""
        return None if self._meeting is None else self._meeting.last

    def join(
        self,
        step: int | None,
        lost: Sequence[int],
        on_joined: Callable[[Joined | Rehearsing], None],
        on_failed: Callable[[Exception], None],
        *,
        rehearses: bool = False,
    ) -> None:
        """`step`, `lost` and `rehearses` are those of `Meeting.meet`. The ranks before end when the hosts have met.
        Afterwards one of the two is called, unless it is closed first: `on_failed` with what a NotMet tells, or the
        ranks."""
        self._step, self._lost, self._on_joined, self._on_failed = step, lost, on_joined, on_failed
        self._rehearses = rehearses
        self._is_over = self._has_joined = False
        self._until = self._outside.now() + self._settings.join_deadline_s
        if self._meeting is None:
            self._join(self._context)
        else:
            self._points = list(range(len(self._meeting.points)))
            self._meet()

    def _join(self, context: HostContext) -> None:
        self._joined_as = context.settings
        try:
            self._ranks = Ranks(context)
        except PassingError as error:
            self._fail(error)

    def _meet(self) -> None:
        assert self._meeting is not None
        self._meeting.meet(self._points, self._step, self._lost, self._until, rehearses=self._rehearses)

    def _fail(self, error: PassingError) -> None:
        if not self._is_over:
            self.close()
            self._on_failed(error)

    def _on(self, event: Met | Rehearses | NotMet | SeatLost | MemberEvent) -> None:
        match event:
            case Met(point, met):
                self._on_met(point, met)
            case Rehearses(world_size):
                self._on_rehearses(world_size)
            case NotMet(error):
                self._fail(error)
            case SeatLost():
                self._on_seat_lost()
            case MemberFailed(member, failure) if self._has_joined and self._is_elastic and member is self._host:
                self._receive(event)
                assert self._meeting is not None
                self._meeting.was_interrupted(failure, self._joined_as.switch or ())
                self._meeting.attend(failure.ranks)
            case _:
                self._receive(event)

    def _receive(self, event: MemberEvent) -> None:
        if self._ranks is None:
            return
        match self._ranks.receive(event):
            case Ranks() as ranks:
                self._on_ranks(ranks)
            case PassingError() as error:
                self._on_no_ranks(error)

    @property
    def _is_elastic(self) -> bool:
        return self._settings.world_size_min is not None

    @property
    def _host(self) -> Membership | None:
        return None if self._ranks is None else self._ranks.host

    def _on_seat_lost(self) -> None:
        """Lets it not try to join at a switch that is gone."""
        if self._ranks is not None and not self._has_joined and not self._is_over:
            self._ranks.close()
            self._on_no_ranks(SwitchLostError("A switch of the hosts that have met is gone."))

    def _on_no_greeting(self) -> None:
        if self._host is not None and any(shard.hello is None for shard in self._host.shards):
            self._on_seat_lost()

    def _on_met(self, point: int, met: messages.Met) -> None:
        settings, meeting = self._settings, self._meeting
        assert meeting is not None
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None
        rank, world_size = settings.rank, settings.world_size
        if self._is_elastic:
            rank, world_size = met.rank, met.world_size
            if rank >= met.survivors:
                self._step = None  # what it has is of another time
        self._point = point
        seed = _seed_after(met.step, settings.seed)
        switches = meeting.switches(point, met)
        context = self._context.replace(switch=switches, rank=rank, world_size=world_size, seed=seed)
        if self._is_elastic:
            context = dataclasses.replace(context, met=met, started_as=settings.rank)
        self._has_joined = False
        self._greetings = self._outside.call_later(CONNECT_TIMEOUT_S, self._on_no_greeting)
        self._join(context)

    def _on_rehearses(self, world_size: int) -> None:
        settings = self._context.replace(world_size=world_size).settings
        try:
            devices = device_ranks(settings, self._context.device_count)
        except PassingError as error:
            self._fail(error)
        else:
            self._on_joined(Rehearsing(world_size - 1, world_size, devices))

    def _stop_waiting(self) -> None:
        if self._greetings is not None:
            self._greetings.cancel()

    def _on_ranks(self, ranks: Ranks) -> None:
        self._stop_waiting()
        self._has_joined = True
        if self._meeting is not None:
            self._meeting.has_begun()
        joined = Joined(ranks, self._joined_as.rank, self._joined_as.world_size)
        if self._is_elastic and self.met is not None:
            joined = joined._replace(step=self.met.step, survivors=self.met.survivors)
        elif self._meeting is not None:
            self._meeting.close()  # it meets nobody again
        self._on_joined(joined)

    def _on_no_ranks(self, error: PassingError) -> None:
        """It tries once more if a host or the switch is lost before all have joined."""
        self._ranks = None
        self._stop_waiting()
        match error:
            case _ if self._meeting is None:
                self._fail(error)
            case AuthenticationError():
                self._fail(error)
            case NoSlotsError() | SwitchUnreachableError() if self._settings.standby and len(self._points) > 1:
                log.warning("%s Going to the standby.", error)
                self._points.remove(self._point)
                self._meet()
            case HostLostError() | SwitchLostError() if self._outside.now() < self._until:
                log.warning("%s Meeting the other hosts again.", blame.to_go_on(str(error)))
                self._meet()
            case JoinError() if self._runs and self._outside.now() < self._until:
                # Others are in the way, as by a rank that was taken. This host runs the job, and they don't.
                log.warning("%s Meeting the other hosts again in %g s.", blame.to_go_on(str(error)), RETRY_S)
                self._retry = self._outside.call_later(RETRY_S, self._meet)
            case JoinError() if self._runs:
                passes = isinstance(error, InterruptionError)
                self._fail(error if passes else TooFewHostsError(blame.to_go_on(str(error))))
            case _:
                self._fail(error)

    @property
    def _runs(self) -> bool:
        """Says whether this host is one of those that run an elastic job, by what was agreed on last, or was one."""
        meeting, met = self._meeting, self.met
        if meeting is None or met is None or not self._is_elastic:
            return False
        return met.rank < met.survivors or meeting.has_run

    def close(self) -> None:
        """Gives up the seat, if there is one, and the ranks. Bounded in time."""
        self._is_over = True
        if self._retry is not None:
            self._retry.cancel()
        self._stop_waiting()
        if self._meeting is not None:
            self._meeting.close()
        if self._ranks is not None:
            self._ranks.close()


def _seed_after(step: int | None, seed: int) -> int:
    """Returns the seed of a job whose hosts go on after `step`. Executions are counted from 0 again, so without another
    seed their random rounding would repeat that of the job's beginning. All hosts know the step, newcomers as well, and
    it is the same when a run is repeated."""
    if step is None:
        return seed
    odd = 0x9E3779B97F4A7C15  # so that neighbouring seeds have nothing in common at neighbouring steps
    return (seed + (step + 1) * odd) % 2**63

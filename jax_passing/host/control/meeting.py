"""A host meets the others of its job before it joins: at its switch, or at a standby if they can't all come there.

It keeps its seat, the connection over which it meets, until its session ends: by that the switch knows that it lives.
This does no I/O.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from jax_passing.config import address_text
from jax_passing.errors import Failure, PassingError, SwitchUnreachableError
from jax_passing.host.control.contact import Contact
from jax_passing.host.control.context import HostContext
from jax_passing.host.control.meeting_point import MeetingPoint, Switches
from jax_passing.host.control.stalls import Wait
from jax_passing.protocol import alike
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.caller import CONNECT_TIMEOUT_S, CallEvent

log = logging.getLogger("jax_passing")

ATTEND_S = 86400.0  # a program may compute for long before it meets the others


@dataclass(frozen=True)
class Met:
    """The hosts have met at this meeting point, and agreed on this."""

    point: int
    met: messages.Met


@dataclass(frozen=True)
class Rehearses:
    """The others run without this host, which may compile its programs before it comes. Then `world_size` would run."""

    world_size: int


@dataclass(frozen=True)
class NotMet:
    """The hosts haven't met. SwitchUnreachableError: no meeting point can be reached. JoinError: not enough hosts
    came."""

    error: PassingError


@dataclass(frozen=True)
class SeatLost:
    """The switch where the hosts have met is gone. They may be joining there."""


class Meeting:
    """A session has one meeting, which keeps its seat and what it knows of the last time. It reports Met, Rehearses or
    NotMet, unless it is closed first, and SeatLost as long as it isn't on.

    Attributes:
      points: where hosts may meet, in the order in which they would rather do so.
      last: what was agreed on at the last meeting.
      is_on: this host waits for the others, or says that it will.
      is_ready: it waits for them.
    """

    def __init__(self, context: HostContext):
        settings = context.settings
        assert settings.switch is not None
        self._context, self.outside, self._settings = context, context.outside, settings
        # Without a standby, hosts of an elastic session meet at any of their switches, and use those that answer all.
        self._is_partial = len(settings.switch) > 1 and not settings.standby and settings.world_size_min is not None
        alone = settings.switch if self._is_partial else settings.standby
        self.points: list[Switches] = [*([] if self._is_partial else [settings.switch]), *((each,) for each in alone)]
        self.last: messages.Met | None = None
        # The last meeting whose hosts have all joined. The others know of no later one, perhaps, and would meet by its
        # numbers: a smaller one that came to nothing must not let fewer hosts train.
        self._begun: messages.Met | None = None
        self._interruption: tuple[Failure, str, float] | None = None  # what ended the last epoch, where, and when
        self.is_on, self.is_ready = False, True
        self._points = [MeetingPoint(self, index, switches) for index, switches in enumerate(self.points)]
        self._open: Sequence[int] = ()  # where it may be this time
        self._step: int | None = None
        self._lost: Sequence[int] = ()
        self._rehearses = False
        self._until = 0.0

    def meet(
        self, points: Sequence[int], step: int | None, lost: Sequence[int], until: float, *, rehearses: bool = False
    ) -> None:
        """Waits for the others.

        Args:
          points: indices of those where it may be, ascending.
          step: the last one that this host completed, if it has the state after it.
          lost: ranks of the last meeting that are known to be lost.
          until: in the time of `outside`.
          rehearses: it would rather compile its programs first, if the others run without it.
        """
        self._open, self._step, self._lost, self._until = points, step, lost, until
        self._rehearses = rehearses
        self.is_ready = True
        self._begin()

    def attend(self, lost: Sequence[int]) -> None:
        """Tells the switches that this host lives, and will meet the others when its program is ready: they wait for
        it then, and for nobody who is gone. `lost` is that of `meet`."""
        self._open, self._step, self._lost = range(len(self.points)), None, lost
        self._until = self.outside.now() + ATTEND_S
        self.is_ready = False
        self._begin()

    @property
    def has_run(self) -> bool:
        """Says whether this host has joined the others, in any epoch."""
        return self._begun is not None

    def has_begun(self) -> None:
        """Is called when all who have met have joined."""
        self._begun, self._interruption = self.last, None

    def was_interrupted(self, failure: Failure, switches: Switches) -> None:
        """Is called when the epoch that has begun has failed, which ran at these switches."""
        where = " and ".join(address_text(*address) for address in switches)
        self._interruption = failure, where, self.outside.now()

    def _begin(self) -> None:
        self.is_on = True
        for index, point in enumerate(self._points):
            point.forget_meeting()
            if index not in self._open:
                point.leave()
        for index in self._open:
            if self.is_on:
                self._points[index].begin()

    # Its points ask this.

    def contact(self, address: tuple[str, int], report: Callable[[CallEvent], None]) -> Contact:
        """Calls a switch."""
        return Contact(self.outside, address, report, job=self._context.job, key=self._context.key)

    @property
    def left_s(self) -> float:
        return self._until - self.outside.now()

    @property
    def lease_s(self) -> float:
        return self._settings.lease

    @property
    def first_answer_s(self) -> float | None:
        """Returns how long a switch may take to answer before the hosts have met at all: it may be starting, too."""
        return CONNECT_TIMEOUT_S if self.last is None else None

    @property
    def whose(self) -> str:
        return f"rank {self._settings.rank} of job {self._context.job!r}"

    def wait(self, switch: str, seat: Contact) -> Wait:
        """Makes what tells this host's user of its wait."""
        return Wait(self.outside, seat.send, f"R{self.whose[1:]}", switch, self.left_s, self._settings.warn_s)

    def switches(self, point: int, met: messages.Met) -> Switches:
        """Returns the switches of the hosts that have met there."""
        if not self._is_partial:
            return self.points[point]
        if met.dark:
            names = " and ".join(self._points[index].who for index in met.dark if index < len(self._points))
            log.warning("No switch answers all hosts at %s: the job goes on with the others.", names)
        return tuple(address for index, (address,) in enumerate(self.points) if index not in met.dark)

    @property
    def _dark(self) -> tuple[int, ...]:
        """Returns the switches that don't answer, where the others may do without them."""
        return tuple(i for i, point in enumerate(self._points) if not point.is_reached) if self._is_partial else ()

    def message(self, point: int, aside: bool) -> messages.Meet:
        """Makes what this host says at a meeting point."""
        settings, last = self._settings, self._begun
        size = settings.world_size if last is None else last.world_size
        wait_s = max(0.1, self.left_s)
        # Only one of two points can reach its quorum. Half of the hosts are enough at the one where they meet first,
        # and then at the one where they have met last, which knows that. Who uses all of the job's switches shares one
        # with all others, and a switch has one epoch of a job at a time.
        quorum = (size + 1) // 2 if point == 0 and last is None else size // 2 + 1
        return messages.Meet(
            protocol_version=messages.PROTOCOL_VERSION,
            job=self._context.job,
            instance=self.outside.instance,
            rank=last.rank if last is not None else settings.rank,
            world_size=settings.world_size,
            world_size_min=settings.world_size_min or settings.world_size,
            deadline_s=wait_s,
            wait_s=wait_s if self.last is None else settings.rejoin_wait_s,
            step=self._step,
            meeting=0 if last is None else last.meeting,
            hosts=0 if last is None else size - len(set(self._lost) - {last.rank}),
            quorum=0 if len(self.points) == 1 or (self._is_partial and not self._dark) else quorum,
            aside=aside,
            lease_s=self.lease_s,
            rehearses=self._rehearses,
            started_as=settings.rank,
            alike=alike.facts(settings, self._context.device_count, self._context.hosts_key),
            ready=self.is_ready,
            dark=self._dark,
            interruption=self._told_interruption(),
        )

    def _told_interruption(self) -> messages.Interruption | None:
        if self._interruption is None:
            return None
        failure, where, at = self._interruption
        text, where = failure.message[: messages.REASON_MAX], where[: messages.REASON_MAX]
        return messages.Interruption(failure.kind, text, where, min(self.outside.now() - at, ATTEND_S))

    def tell_points(self) -> None:
        """Tells each meeting point whether this host waits at one that goes before it, once that is known."""
        if self._is_partial and any(self._points[index].is_reached is None for index in self._open):
            return
        aside = False
        for index in self._open:
            point = self._points[index]
            if not self.is_on:
                return
            point.tell(aside)
            if point.is_reached is None:
                return
            aside |= point.is_reached

    def on_rehearse(self, index: int, world_size: int) -> None:
        if self._rehearses:
            self._end(index)
            self._context.events.add(Rehearses(world_size))

    def _end(self, index: int) -> None:
        """Keeps the seat at this point, and no other."""
        self.is_on = False
        for other, point in enumerate(self._points):
            if other == index:
                point.stop_waiting()
            else:
                point.leave()

    def on_met(self, index: int, met: messages.Met) -> None:
        """Raises msgspec.DecodeError."""
        if self._is_partial and index in met.dark:
            raise msgspec.DecodeError("the switch says that it doesn't answer itself")
        self.last = met
        self._end(index)
        log.info("met %d hosts of job %s: rank %d", met.world_size, self._context.job, met.rank)
        self._context.events.add(Met(index, met))

    def refused(self, error: PassingError) -> None:
        """Ends it: this host is refused, wherever it waits."""
        self.close()
        self._context.events.add(NotMet(error))

    def lost_seat(self) -> None:
        if not self.is_on:
            self._context.events.add(SeatLost())

    def gave_up(self) -> None:
        if not self.is_ready:
            return  # its program hears of it when it comes
        errors = [error for index in self._open if (error := self._points[index].error) is not None]
        if len(errors) < len(self._open):
            self.tell_points()
            return
        self.close()
        # A switch that could be reached knows who is missing.
        known = [error for error in errors if not isinstance(error, SwitchUnreachableError)]
        self._context.events.add(NotMet((known or errors)[0]))

    def close(self) -> None:
        """Gives up the seats."""
        self.is_on = False
        for point in self._points:
            point.leave()

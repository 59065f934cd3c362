"""A host meets the others of its job before it joins: at its switch, or at a standby if they can't all come there.

It keeps its seat, the connection over which it meets, until its session ends: by that the switch knows that it lives.
This does no I/O.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jax_passing.errors import PassingError, SwitchUnreachableError
from jax_passing.host.control.contact import Contact
from jax_passing.host.control.context import HostContext
from jax_passing.host.control.meeting_point import MeetingPoint, Switches
from jax_passing.host.control.stalls import Wait
from jax_passing.protocol import alike
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.caller import CallEvent

log = logging.getLogger("jax_passing")


@dataclass(frozen=True)
class Met:
    """The hosts have met at this meeting point, and agreed on this."""

    point: int
    met: messages.Met


@dataclass(frozen=True)
class Rehearses:
    """The others run without this host, which may compile its programs before it comes. They would be so many."""

    world_size: int


@dataclass(frozen=True)
class NotMet:
    """The hosts haven't met. SwitchUnreachableError: no meeting point can be reached. JoinError: not enough hosts
    came."""

    error: PassingError


class Meeting:
    """A session has one meeting, which keeps its seat and what it knows of the last time. It reports Met, Rehearses or
    NotMet, unless it is closed first.

    Attributes:
      points: where hosts may meet, in the order in which they would rather do so.
      last: what was agreed on at the last meeting.
      is_on: this host waits for the others.
    """

    def __init__(self, context: HostContext):
        settings = context.settings
        assert settings.switch is not None
        self._context, self.outside, self._settings = context, context.outside, settings
        self.points: list[Switches] = [settings.switch, *((address,) for address in settings.standby)]
        self.last: messages.Met | None = None
        self.is_on = False
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
        self.is_on = True
        for index, point in enumerate(self._points):
            point.forget_meeting()
            if index not in points:
                point.leave()
        for index in points:
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
    def whose(self) -> str:
        return f"rank {self._settings.rank} of job {self._context.job!r}"

    def wait(self, switch: str, seat: Contact) -> Wait:
        """Makes what tells this host's user of its wait."""
        return Wait(self.outside, seat.send, f"R{self.whose[1:]}", switch, self.left_s, self._settings.warn_s)

    def message(self, point: int, aside: bool) -> messages.Meet:
        """Makes what this host says at a meeting point."""
        settings, last = self._settings, self.last
        size = settings.world_size if last is None else last.world_size
        wait_s = max(0.1, self.left_s)
        # Only one of two points can reach its quorum: half of the hosts are enough at the one where they meet first.
        quorum = 0 if len(self.points) == 1 else (size + 1) // 2 if point == 0 else size // 2 + 1
        return messages.Meet(
            protocol_version=messages.PROTOCOL_VERSION,
            job=self._context.job,
            instance=self.outside.instance,
            rank=last.rank if last is not None else settings.rank,
            world_size=settings.world_size,
            world_size_min=settings.world_size_min or settings.world_size,
            deadline_s=wait_s,
            wait_s=wait_s if last is None else settings.rejoin_wait_s,
            step=self._step,
            meeting=0 if last is None else last.meeting,
            hosts=0 if last is None else size - len(set(self._lost) - {last.rank}),
            quorum=quorum,
            aside=aside,
            lease_s=self.lease_s,
            rehearses=self._rehearses,
            started_as=settings.rank,
            alike=alike.facts(settings, self._context.device_count),
        )

    def tell_points(self) -> None:
        """Tells each meeting point whether this host waits at one that goes before it, once that is known."""
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
        self.last = met
        self._end(index)
        log.info("met %d hosts of job %s: rank %d", met.world_size, self._context.job, met.rank)
        self._context.events.add(Met(index, met))

    def refused(self, error: PassingError) -> None:
        """Ends it: this host is refused, wherever it waits."""
        self.close()
        self._context.events.add(NotMet(error))

    def gave_up(self) -> None:
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

"""Hosts may meet at a meeting point: at their switch, or at a standby. This does no I/O."""

import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from jax_passing.config import address_text
from jax_passing.errors import (
    AuthenticationError,
    ConfigError,
    Failure,
    JoinError,
    PassingError,
    SwitchUnreachableError,
)
from jax_passing.host.control.contact import DEADLINE_GRACE_S, RETRY_S, Contact, no_answer
from jax_passing.host.control.stalls import Wait
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.alike import protocol_difference
from jax_passing.protocol.caller import Alive, CallEvent, Greeted, Heard, Lost
from jax_passing.protocol.outside import Outside, Timer

log = logging.getLogger("jax_passing")

ANSWER_S = 1.0  # in which a switch answers, or hosts meet without it: they come back to it when it does
DARK_ANSWER_S = 0.25  # of one that didn't answer the last time

Switches = tuple[tuple[str, int], ...]  # of a job: those of `switch`, or a standby


class MeetingOfPoint(Protocol):
    """A meeting point asks this of the meeting that it belongs to (meeting.py)."""

    is_on: bool
    is_ready: bool

    @property
    def outside(self) -> Outside: ...
    @property
    def left_s(self) -> float: ...
    @property
    def first_answer_s(self) -> float | None: ...
    @property
    def whose(self) -> str: ...
    @property
    def lease_s(self) -> float: ...

    def contact(self, address: tuple[str, int], report: Callable[[CallEvent], None]) -> Contact:
        """Calls a switch."""

    def wait(self, switch: str, seat: Contact) -> Wait:
        """Makes what tells this host's user of its wait."""

    def message(self, point: int, aside: bool) -> messages.Meet:
        """Makes what this host says at a meeting point."""

    def tell_points(self) -> None:
        """Tells each meeting point whether this host waits at one that goes before it, once that is known."""

    def on_met(self, index: int, met: messages.Met) -> None: ...
    def refused(self, error: PassingError) -> None: ...

    def on_rehearse(self, index: int, world_size: int) -> None: ...
    def gave_up(self) -> None: ...
    def lost_seat(self) -> None: ...


class MeetingPoint:
    """This host may have a seat here.

    Attributes:
      is_reached: whether its switches answer; None: it isn't known yet.
      error: why this host doesn't wait there any more.
    """

    def __init__(self, meeting: MeetingOfPoint, index: int, switches: Switches):
        self._meeting, self._outside, self._index = meeting, meeting.outside, index
        self._switches = switches
        self._answers = True  # the last time
        self._retry: Timer | None = None
        self._late: Timer | None = None
        self._patience: Timer | None = None
        self._wait: Wait | None = None
        self._seat: Contact | None = None
        self._calls: list[Contact] = []  # to see whether its other switches answer, as the job needs all of them
        self._unanswered = 0
        self.forget_meeting()

    def forget_meeting(self) -> None:
        """Lets nothing of the last meeting count any more, but the seat stays."""
        self.is_reached: bool | None = None
        self.error: PassingError | None = None
        self._problem: Exception | None = None
        self._told: messages.Meet | None = None
        self.stop_waiting()

    def stop_waiting(self) -> None:
        """Ends what goes on here, but the seat stays."""
        for timer in (self._retry, self._late, self._patience):
            if timer is not None:
                timer.cancel()
        if self._wait is not None:
            self._wait.stop()
            self._wait = None
        for call in self._calls:
            call.close()
        self._calls = []

    @property
    def who(self) -> str:
        return " or ".join(address_text(*address) for address in self._switches)

    # The calls.

    def begin(self) -> None:
        meeting = self._meeting
        first, *others = self._switches
        self._late = self._outside.call_later(max(0.0, meeting.left_s) + DEADLINE_GRACE_S, self._on_late)
        self._unanswered = len(others) + 1
        self._calls = [meeting.contact(other, self._on_call) for other in others]
        if self._seat is not None and self._seat.has_greeted and not self._seat.is_kept_alive:
            self._seat.close()  # its switch loses patience with a host that has said nothing yet
            self._seat = None
        if self._seat is None:
            self._seat = meeting.contact(first, self._on_seat)
        elif self._seat.has_greeted:
            self._seat.prove(ANSWER_S)  # the connection to a switch that has stopped stays open
        if self.is_reached is None:
            patience_s = ANSWER_S if self._answers else DARK_ANSWER_S
            self._patience = self._outside.call_later(meeting.first_answer_s or patience_s, self._on_no_answer)

    def _on_no_answer(self) -> None:
        """Lets this host be at the other points as if it couldn't be here, until all switches here have answered."""
        if self.is_reached is None:
            self.is_reached = self._answers = False
            self._meeting.tell_points()

    def _on_call(self, event: CallEvent) -> None:
        """Takes what happens at a switch at which this host doesn't meet: it is called to see whether it answers."""
        match event:
            case Greeted():
                self._answered()
            case Lost(error):
                self._call_failed(error)

    def _answered(self) -> None:
        self._unanswered -= 1
        if not self._unanswered:
            self._on_reached()

    def _on_reached(self) -> None:
        self.is_reached = self._answers = True
        for call in self._calls:
            call.close()
        self._calls = []
        self._meeting.tell_points()

    def tell(self, aside: bool) -> None:
        """`aside`: this host waits at a meeting point that goes before this one, too."""
        if not self.is_reached or self._seat is None:
            return
        said = self._meeting.message(self._index, aside)
        if self._told is not None and (self._told.aside, self._told.dark) == (said.aside, said.dark):
            return
        self._told = said
        self._seat.send(said)
        self._seat.keep_alive(self._meeting.lease_s)
        if self._wait is None and self._meeting.is_ready:
            self._wait = self._meeting.wait(address_text(*self._switches[0]), self._seat)

    def _call_failed(self, error: Exception) -> None:
        """Is called if one of its switches doesn't answer, or the seat is lost."""
        if isinstance(error, AuthenticationError | ConfigError):
            self._give_up(error)
            return
        left_s, is_first = self._meeting.left_s, self._problem is None
        self._problem = error
        self.is_reached, self._told, self._answers = False, None, False
        self.stop_waiting()
        if self._seat is not None and not self._seat.has_greeted:
            self._seat.close()
            self._seat = None
        if is_first and self._meeting.is_ready:
            log.warning("No switch answered at %s (%s): trying for %.0f s", self.who, error, max(0.0, left_s))
        if left_s <= RETRY_S:
            self._give_up(no_answer(self.who, "until the deadline", error))
        else:
            self._retry = self._outside.call_later(RETRY_S, self.begin)
            self._meeting.tell_points()

    def _on_late(self) -> None:
        self._call_failed(TimeoutError("timed out"))

    def _give_up(self, error: PassingError) -> None:
        self.is_reached, self.error = False, error
        self.leave()
        self._meeting.gave_up()

    # The conversation over the seat.

    def _on_seat(self, event: CallEvent) -> None:
        match event:
            case Greeted(hello) if hello.protocol_version != messages.PROTOCOL_VERSION:
                versions = hello.protocol_version, self._meeting.whose, messages.PROTOCOL_VERSION
                self._give_up(JoinError(protocol_difference(address_text(*self._switches[0]), *versions, "that host")))
            case Greeted() | Alive():
                self._answered()
            case Heard(message) if self._meeting.is_on:
                self._hear(message)
            case Lost(error):
                self._seat, self._answers = None, False
                if self._meeting.is_on and self.error is None:
                    self._call_failed(error)
                else:
                    self._meeting.lost_seat()

    def _hear(self, message: messages.FromParent) -> None:
        match message:
            case messages.Met():
                self._meeting.on_met(self._index, message)
            case messages.Rehearse(world_size):
                self._meeting.on_rehearse(self._index, world_size)
            case messages.SlotState():
                if self._wait is not None:
                    self._wait.warn(message)
            case messages.Refused(kind, text):
                error = Failure(kind, text).exception()
                if isinstance(error, SwitchUnreachableError):  # a rack's switch misses its parent
                    self.leave()
                    self._call_failed(error)
                elif isinstance(error, ConfigError):
                    self._meeting.refused(error)
                else:
                    self._give_up(error)
            case _:
                what = type(message).__name__
                raise msgspec.DecodeError(f"the switch answered {what} to a host that wants to meet")

    def leave(self) -> None:
        """Gives up the seat."""
        self.stop_waiting()
        if self._seat is not None:
            self._seat.close()
            self._seat = None

"""A rack's switch keeps the seats of its hosts here, and hands on what they say to its parent (`rack_seats.py`)."""

import itertools
import logging
from collections.abc import Callable

import msgspec

from jax_passing.config import address_text
from jax_passing.errors import JoinError, SwitchUnreachableError, is_kind
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.caller import CallEvent, Greeted, Heard, Lost
from jax_passing.protocol.outside import Outside
from jax_passing.switch.jobs.admission import RefusalError
from jax_passing.switch.meetings.seats import ToHost, answer_query, meet_of
from jax_passing.switch.tree.parent_call import ParentCall, cant_reach

log = logging.getLogger("jax_passing.switch")

ANSWER_S = 1.0  # of the parent, when it is called: hosts may have a standby, where they could meet meanwhile
LEASE_MAX_S = 5.0  # of the parent: hosts that wait are to come again soon


class SeatsAtParent:
    """These are the seats of one job. One connection to the parent serves them all, over which we hand on what either
    side says. When it ends we hang up on all these hosts, as if this switch were lost, and they come again."""

    def __init__(
        self,
        outside: Outside,
        parent: tuple[str, int],
        own_name: str,
        job: str,
        key: bytes | None,
        forget: Callable[[str], object],
    ):
        """Calls the parent. `own_name`: the address of this switch, for people. `forget`: called with the job when no
        more seats can be had here."""
        self._outside, self._own_name, self._job, self._forget = outside, own_name, job, forget
        self._parent = address_text(*parent)
        self._seats: dict[int, SeatAtParent] = {}
        self._numbers = itertools.count()
        self._has_begun = False
        call = ParentCall(outside, parent, self._on_event, own_name=own_name, job=job, key=key, timeout_s=ANSWER_S)
        self._call: ParentCall | None = call  # until it is over

    def seat(self, host: ToHost, path: tuple[str, ...]) -> "SeatAtParent":
        """Makes a seat. `path`: the instances of the switches on the host's way to the parent."""
        number = next(self._numbers)
        self._seats[number] = SeatAtParent(self, number, self._job, host, path)
        return self._seats[number]

    def why_not(self) -> str:
        """Says why the hosts that wait don't meet yet, as far as this switch knows."""
        return (
            f"Of the hosts of job {self._job!r}, {len(self._seats)} came to this switch. Its parent, the switch at "
            f"{self._parent}, waits for the others."
        )

    def tell(self, number: int) -> None:
        """Tells the parent what the host in this seat said, unless the parent hasn't greeted us yet: then it is told
        all at once when it has."""
        if self._has_begun and (seat := self._seats.get(number)) is not None:
            self._send(messages.RackMeet(number, seat.said, seat.path, seat.host.host))

    def _send(self, message: messages.RackMeet) -> None:
        if self._call is not None:
            self._call.send(message)

    def leave(self, number: int) -> None:
        if self._seats.pop(number, None) is None:
            return
        if not self._seats:
            self._end()
        elif self._has_begun:
            self._send(messages.RackMeet(number))

    def end(self, text: str, kind: str) -> None:
        """Sends the hosts away that wait, with this text and kind of error."""
        for number, seat in list(self._seats.items()):
            if seat.waits:
                seat.host.send(messages.Refused(kind, text[: messages.TEXT_MAX]))
                seat.host.close()
                self.leave(number)

    def _on_event(self, event: CallEvent) -> None:
        match event:
            case Greeted():
                # One that is full says so right behind its greeting, and hangs up. If we spoke to it before we have
                # heard that, the kernel would drop what it said.
                self._outside.call_later(0.0, self._begin)
            case Heard(message):
                self._on_message(message)
            case Lost(RefusalError() as refusal):
                self._refuse_all(str(refusal))
            case Lost(error):
                self._on_lost(error)

    def _begin(self) -> None:
        if self._call is not None:
            self._has_begun = True
            self._call.keep_alive(min(LEASE_MAX_S, *(seat.said.lease_s for seat in self._seats.values())))
            for number in list(self._seats):
                self.tell(number)
            self._call.send(messages.Heartbeat())  # by its answer we know that the parent takes seats

    def _on_message(self, message: messages.FromParent) -> None:
        match message:
            case messages.RackMet(number, answer):
                self._on_answer(number, answer)
            case messages.Refused(kind, text) if is_kind(kind):
                self._refuse_all(f"The switch at {self._parent} refuses the one at {self._own_name}: {text}", kind)
            case _:
                raise msgspec.DecodeError(f"{type(message).__name__} for hosts that meet others")

    def _on_answer(self, number: int, answer: messages.Met | messages.Rehearse | messages.Refused | None) -> None:
        seat = self._seats.get(number)
        if seat is None:
            return  # it has left meanwhile
        if answer is None:
            del self._seats[number]
            seat.host.close()
            if not self._seats:
                self._end()
        else:
            seat.waits = False
            seat.host.send(answer)

    def _refuse_all(self, text: str, kind: str = JoinError.__name__) -> None:
        log.warning("refused %d hosts of job %r that meet: %s", len(self._seats), self._job, text)
        for seat in self._seats.values():
            seat.host.send(messages.Refused(kind, text[: messages.TEXT_MAX]))
        self._end()

    def _on_lost(self, error: Exception) -> None:
        assert self._call is not None
        if self._call.has_answered:
            log.info("parent at %s, for hosts of job %r that meet: %s", self._parent, self._job, error)
            self._end()
        else:  # hosts try again, until their deadline
            self._refuse_all(cant_reach(self._own_name, self._parent, error), SwitchUnreachableError.__name__)

    def _end(self) -> None:
        """Closes the connection, and those of the hosts that still have seats."""
        if self._call is None:
            return
        self._call.close()
        self._call = None
        self._forget(self._job)
        for seat in self._seats.values():
            seat.host.close()
        self._seats.clear()


class SeatAtParent:
    """This is the seat of one host.

    Attributes:
      host: the way to it.
      path: the instances of the switches on its way to the parent.
      said: what it said last.
      waits: whether it waits for an answer to that.
    """

    said: messages.Meet
    waits = False

    def __init__(self, at_parent: SeatsAtParent, number: int, job: str, host: ToHost, path: tuple[str, ...]):
        self._at_parent = at_parent
        self._number = number
        self._job = job
        self.host = host
        self.path = path

    def hear(self, message: messages.FromMember) -> None:
        if isinstance(message, messages.Heartbeat):
            self.host.send(message)
        elif isinstance(message, messages.Query):
            answer_query(self.host, self._at_parent.why_not())
        else:
            self.said, self.waits = meet_of(self._job, message), True
            self._at_parent.tell(self._number)

    def leave(self) -> None:
        self._at_parent.leave(self._number)

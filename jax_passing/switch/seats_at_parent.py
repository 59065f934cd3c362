"""The seats of a rack's hosts, at its own switch, which hands on what they say to its parent (`rack_seats.py`)."""

import itertools
import logging
from collections.abc import Callable

import msgspec

from jax_passing.errors import JoinError, SwitchUnreachableError, is_kind
from jax_passing.protocol import control_messages as messages
from jax_passing.switch.admission import RefusalError
from jax_passing.switch.outside import Connection, Outside
from jax_passing.switch.parent_greeting import ParentGreeting, problem_of
from jax_passing.switch.seats import ToHost, meet_of

log = logging.getLogger("jax_passing.switch")


class SeatsAtParent:
    """The seats of one job. One connection to the parent serves them all, over which we hand on what either side says.
    When it ends we hang up on all these hosts, as if this switch were lost, and they come again."""

    line_bytes_max = messages.LINE_BYTES_MAX

    def __init__(
        self,
        parent: str,
        own_name: str,
        job: str,
        key: bytes | None,
        outside: Outside,
        forget: Callable[[str], object],
    ):
        """`parent`, `own_name`: the addresses of both switches, for people. `forget`: called with the job when no more
        seats can be had here."""
        self._parent, self._own_name = parent, own_name
        self._job, self._key = job, key
        self._outside = outside
        self._forget = forget
        self._connection: Connection | None = None
        self._greeting: ParentGreeting | None = None  # once connected
        self._seats: dict[int, SeatAtParent] = {}
        self._numbers = itertools.count()
        self._is_greeted = self._is_over = False

    def seat(self, host: ToHost) -> "SeatAtParent":
        number = next(self._numbers)
        self._seats[number] = SeatAtParent(self, number, self._job, host)
        return self._seats[number]

    def tell(self, number: int, said: messages.Meet) -> None:
        """Tells the parent what the host in this seat said, unless the parent hasn't greeted us yet: then it is told
        all at once when it has."""
        if self._is_greeted and number in self._seats:
            assert self._connection is not None
            self._connection.send(messages.RackMeet(number, said))

    def leave(self, number: int) -> None:
        if self._seats.pop(number, None) is None:
            return
        if not self._seats:
            self._end()
        elif self._is_greeted:
            assert self._connection is not None
            self._connection.send(messages.RackMeet(number, None))

    def opened(self, connection: Connection) -> None:
        self._connection = connection
        if self._is_over:
            connection.close()
        else:
            self._greeting = ParentGreeting(
                connection,
                self._parent,
                self._own_name,
                self._job,
                self._key,
                self._outside,
                self.closed,
            )

    def secured(self) -> None:
        if self._greeting is not None:
            self._greeting.secured()

    def heard(self, line: bytes) -> None:
        if self._is_over:
            return
        assert self._greeting is not None
        try:
            if self._is_greeted:
                self._on_message(messages.decode_from_parent(line))
            elif self._greeting.heard(line) is not None:
                self._is_greeted = True
                for number, seat in self._seats.items():
                    self.tell(number, seat.said)
        except RefusalError as refusal:
            self._refuse_all(str(refusal))
        except (OSError, msgspec.DecodeError) as error:
            self.closed(error)

    def _on_message(self, message: messages.FromParent) -> None:
        match message:
            case messages.RackMet(number, answer):
                self._on_answer(number, answer)
            case messages.Refused(kind, text) if is_kind(kind):
                self._refuse_all(f"The switch at {self._parent} refuses the one at {self._own_name}: {text}", kind)
            case _:
                raise msgspec.DecodeError(f"{type(message).__name__} for hosts that meet others")

    def _on_answer(self, number: int, answer: messages.Met | messages.Refused | None) -> None:
        seat = self._seats.get(number)
        if seat is None:
            return  # it has left meanwhile
        if answer is None:
            seat.host.close()
        else:
            seat.host.send(answer)

    def _refuse_all(self, text: str, kind: str = JoinError.__name__) -> None:
        for seat in self._seats.values():
            seat.host.send(messages.Refused(kind, text[: messages.TEXT_MAX]))
        self._end()

    def closed(self, error: Exception | None) -> None:
        if self._is_over:
            return
        problem = problem_of(error)
        log.info("parent at %s, for hosts of job %r that meet: %s", self._parent, self._job, problem)
        if self._is_greeted:
            self._end()
        else:  # hosts try again, until their deadline
            text = (
                f"The switch at {self._own_name} can't reach its parent, the switch at {self._parent} ({problem}). Is "
                "that switch running, and is --parent its address?"
            )
            self._refuse_all(text, SwitchUnreachableError.__name__)

    def _end(self) -> None:
        """Closes the connection, and those of the hosts that still have seats."""
        if self._is_over:
            return
        self._is_over = True
        self._forget(self._job)
        if self._greeting is not None:
            self._greeting.end()
        for seat in self._seats.values():
            seat.host.close()
        self._seats.clear()
        if self._connection is not None:
            self._connection.close()


class SeatAtParent:
    """The seat of one host.

    Attributes:
      said: what the host said last.
    """

    said: messages.Meet

    def __init__(self, at_parent: SeatsAtParent, number: int, job: str, host: ToHost):
        self._at_parent = at_parent
        self._number = number
        self._job = job
        self.host = host

    def hear(self, message: messages.FromMember) -> None:
        self.said = meet_of(self._job, message)
        self._at_parent.tell(self._number, self.said)

    def leave(self) -> None:
        self._at_parent.leave(self._number)

"""A rack's switch keeps the seats of its hosts here, and hands on what they say to its parent (`rack_seats.py`)."""

import itertools
import logging
from collections.abc import Callable

import msgspec

from jax_passing.errors import JoinError, SwitchUnreachableError, is_kind
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.lease import HEARTBEATS_PER_LEASE
from jax_passing.protocol.outside import Connection, Outside, Timer
from jax_passing.switch.jobs.admission import RefusalError
from jax_passing.switch.meetings.seats import ToHost, answer_query, meet_of
from jax_passing.switch.tree.parent_greeting import ParentGreeting, problem_of

log = logging.getLogger("jax_passing.switch")

BEAT_S = 1.0  # at most
BEATS_MAX = 5  # a parent that leaves so many heartbeats without an answer is gone


class SeatsAtParent:
    """These are the seats of one job. One connection to the parent serves them all, over which we hand on what either
    side says. When it ends we hang up on all these hosts, as if this switch were lost, and they come again."""

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
        self._is_greeted = self._has_begun = self._is_answered = self._is_over = False
        self._beat_timer: Timer | None = None
        self._beat_s = BEAT_S
        self._beats = 0  # since it said something

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
        if self._has_begun and number in self._seats:
            assert self._connection is not None
            seat = self._seats[number]
            self._connection.send(messages.RackMeet(number, seat.said, seat.path))

    def leave(self, number: int) -> None:
        if self._seats.pop(number, None) is None:
            return
        if not self._seats:
            self._end()
        elif self._has_begun:
            assert self._connection is not None
            self._connection.send(messages.RackMeet(number))

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
            elif (hello := self._greeting.heard(line)) is not None:
                self._is_greeted = True
                self._beat_s = min(BEAT_S, hello.lease_s / HEARTBEATS_PER_LEASE)
                # One that is full says so right behind its greeting, and hangs up. If we spoke to it before we have
                # heard that, the kernel would drop what it said.
                self._outside.call_later(0.0, self._begin)
        except RefusalError as refusal:
            self._refuse_all(str(refusal))
        except (OSError, msgspec.DecodeError) as error:
            self.closed(error)

    def _begin(self) -> None:
        if self._is_over:
            return
        self._has_begun = True
        for number in list(self._seats):
            self.tell(number)
        self._beat()

    def _beat(self) -> None:
        if self._beats == BEATS_MAX:
            self.closed(TimeoutError())
            return
        assert self._connection is not None
        self._connection.send(messages.Heartbeat())
        self._beats += 1
        self._beat_timer = self._outside.call_later(self._beat_s, self._beat)

    def _on_message(self, message: messages.FromParent) -> None:
        self._beats = 0
        match message:
            case messages.Heartbeat():
                self._is_answered = True
            case messages.RackMet(number, answer):
                self._is_answered = True
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
            del self._seats[number]
            seat.host.close()
            if not self._seats:
                self._end()
        else:
            seat.host.send(answer)

    def _refuse_all(self, text: str, kind: str = JoinError.__name__) -> None:
        log.warning("refused %d hosts of job %r that meet: %s", len(self._seats), self._job, text)
        for seat in self._seats.values():
            seat.host.send(messages.Refused(kind, text[: messages.TEXT_MAX]))
        self._end()

    def closed(self, error: Exception | None) -> None:
        if self._is_over:
            return
        problem = problem_of(error, self._greeting)
        if self._is_answered:
            log.info("parent at %s, for hosts of job %r that meet: %s", self._parent, self._job, problem)
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
            self._greeting = None  # it leads back here
        if self._beat_timer is not None:
            self._beat_timer.cancel()
        for seat in self._seats.values():
            seat.host.close()
        self._seats.clear()
        if self._connection is not None:
            self._connection.close()


class SeatAtParent:
    """This is the seat of one host.

    Attributes:
      host: the way to it.
      path: the instances of the switches on its way to the parent.
      said: what it said last.
    """

    said: messages.Meet

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
            self.said = meet_of(self._job, message)
            self._at_parent.tell(self._number)

    def leave(self) -> None:
        self._at_parent.leave(self._number)

"""How a host meets the others of its job before it joins: at its switch, or at a standby if they can't all come there.

It keeps its seat, the connection over which it meets, until its session ends: by that the switch knows that it lives.
"""

import logging
import queue
import threading
import time
import uuid
from collections.abc import Mapping, Sequence

import msgspec

from jax_passing.config import Settings, address_text
from jax_passing.errors import Failure, JoinError, SwitchUnreachableError
from jax_passing.host.control_connection import ControlConnection, connect_now
from jax_passing.host.stalls import Wait
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.alike import protocol_difference

log = logging.getLogger("jax_passing")

INSTANCE = uuid.uuid4().hex  # tells this process from any other
RETRY_S = 0.25
SLICE_S = 0.1  # between two looks at what the other places are like
GRACE_S = 5.0  # the switch keeps the deadline, and knows who is missing

Place = tuple[tuple[str, int], ...]  # the switches of a job: those of `switch`, or a standby


def places_of(settings: Settings) -> list[Place]:
    """Where a job may run: the switches of each place."""
    assert settings.switch is not None
    return [settings.switch, *((address,) for address in settings.standby)]


def is_aside(place: int, places: Sequence[int], reached: Mapping[int, bool]) -> bool | None:
    """Whether a host that waits at `place` waits at one that goes before it, too; None: it isn't known yet.

    Args:
      reached: by place, once it was tried.
    """
    before = [reached.get(other) for other in places if other < place]
    return None if None in before else any(before)


class Meetings:
    """Of one session: its seat, and what it knows of the last meeting.

    Attributes:
      places: where hosts may meet, in the order in which they would rather do so.
      last: what was agreed on at the last meeting.
    """

    def __init__(self, settings: Settings, key: bytes | None = None, instance: str = INSTANCE):
        """`key`: the job's, if it has one. `instance`: tells this host from any other."""
        assert settings.job is not None  # there is a switch
        self._settings, self._job = settings, settings.job
        self._instance, self._key = instance, key
        self.places = places_of(settings)
        self._seat: tuple[int, ControlConnection] | None = None
        self.last: messages.Met | None = None

    def meet(
        self, places: Sequence[int], step: int | None, lost: Sequence[int], until: float
    ) -> tuple[int, messages.Met]:
        """Waits for the others: (at which place, what they agreed on).

        Args:
          places: indices of those where it may be, ascending.
          step: the last one that this host completed, if it has the state after it.
          lost: ranks of the last meeting that are known to be lost.
          until: monotonic.

        Raises:
          SwitchUnreachableError: none of the places can be reached.
          JoinError: not enough hosts came.
        """
        if self._seat is not None and self._seat[0] not in places:
            self.close()
        place, connection, met = _Attempt(self, places, step, lost, until).outcome()
        self.close()
        self._seat, self.last = (place, connection), met
        log.info("met %d hosts of job %s: rank %d", met.world_size, self._settings.job, met.rank)
        return place, met

    def connect(self, place: int) -> ControlConnection:
        """To meet there: the seat, if it is still there. Raises SwitchUnreachableError if any switch of the place
        doesn't answer, as the job needs all of them, or JoinError."""
        first, *others = self.places[place]
        for address in others:
            other, _ = connect_now(address, key=self._key, job=self._job)
            other.close()
        if self._seat is not None and self._seat[0] == place:
            (_, connection), self._seat = self._seat, None
            return connection
        connection, hello = connect_now(first, key=self._key, job=self._job)
        if hello.protocol_version != messages.PROTOCOL_VERSION:
            connection.close()
            who = f"rank {self._settings.rank} of job {self._settings.job!r}"
            versions = hello.protocol_version, who, messages.PROTOCOL_VERSION
            raise JoinError(protocol_difference(address_text(*first), *versions, "that host"))
        return connection

    def message(self, place: int, step: int | None, lost: Sequence[int], left_s: float, aside: bool) -> messages.Meet:
        """What this host says at a place: it needs no connection, as simulated hosts say the same."""
        settings, last = self._settings, self.last
        size = settings.world_size if last is None else last.world_size
        # Of two places only one can have so many of the hosts: half of them are enough where they are to meet first.
        quorum = 0 if len(self.places) == 1 else (size + 1) // 2 if place == 0 else size // 2 + 1
        return messages.Meet(
            protocol_version=messages.PROTOCOL_VERSION,
            job=self._job,
            instance=self._instance,
            rank=last.rank if last is not None else settings.rank,
            world_size=settings.world_size,
            world_size_min=settings.world_size_min or settings.world_size,
            deadline_s=max(0.1, left_s),
            wait_s=max(0.1, left_s) if last is None else settings.rejoin_wait_s,
            step=step,
            meeting=0 if last is None else last.meeting,
            hosts=0 if last is None else size - len(set(lost) - {last.rank}),
            quorum=quorum,
            aside=aside,
        )

    def wait(self, place: int, left_s: float) -> Wait:
        """Makes what tells this host's user of its wait at a place."""
        who = f"Rank {self._settings.rank} of job {self._job!r}"
        return Wait(who, address_text(*self.places[place][0]), left_s, self._settings.warn_s)

    def close(self) -> None:
        """Gives up the seat."""
        if self._seat is not None:
            self._seat[1].hang_up()
            self._seat[1].close()
            self._seat = None

    def forget_in_child(self) -> None:
        """After a fork: the connection is the parent's."""
        if self._seat is not None:
            self._seat[1].close()


class _Attempt:
    """Waits at several places at once, by a thread for each, until the hosts have met at one of them."""

    def __init__(self, meetings: Meetings, places: Sequence[int], step: int | None, lost: Sequence[int], until: float):
        self._meetings = meetings
        self._places, self._step, self._lost, self._until = places, step, lost, until
        self._reached: dict[int, bool] = {}  # by place, once it was tried
        self._outcomes: queue.SimpleQueue[tuple[int, ControlConnection, messages.Met] | Exception]
        self._outcomes = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def outcome(self) -> tuple[int, ControlConnection, messages.Met]:
        for place in self._places:
            threading.Thread(target=self._run, args=(place,), name="jax_passing-meeting", daemon=True).start()
        errors: list[Exception] = []
        try:
            while len(errors) < len(self._places):
                one = self._outcomes.get()
                if not isinstance(one, Exception):
                    return one
                errors.append(one)
        finally:
            self._is_over.set()
        # A switch that could be reached knows who is missing.
        raise next((error for error in errors if not isinstance(error, SwitchUnreachableError)), errors[0])

    def _run(self, place: int) -> None:
        try:
            problem: Exception | None = None
            while not self._is_over.is_set():
                try:
                    self._wait_at(place)
                    return
                except (OSError, msgspec.DecodeError, SwitchUnreachableError) as error:
                    self._reached[place] = False
                    if problem is None:
                        log.warning("%s (trying for %.0f s)", error, max(0.0, self._until - time.monotonic()))
                    problem = error
                if time.monotonic() + RETRY_S >= self._until:
                    raise self._unreachable(place, problem) from problem
                self._is_over.wait(RETRY_S)
        except Exception as error:
            self._reached[place] = False
            self._outcomes.put(error)

    def _unreachable(self, place: int, problem: Exception) -> SwitchUnreachableError:
        who = " or ".join(address_text(*address) for address in self._meetings.places[place])
        return SwitchUnreachableError(
            f"No switch answered at {who} until the deadline ({problem}). Is it running (`jax-passing switch --listen "
            "HOST:PORT`), is the address right, and does a firewall let TCP and UDP pass?"
        )

    def _wait_at(self, place: int) -> None:
        """Until the hosts have met here, or somewhere else. Raises what goes wrong."""
        connection = self._meetings.connect(place)
        try:
            self._reached[place] = True
            met = self._converse(place, connection)
            with self._lock:
                if met is not None and not self._is_over.is_set():
                    self._is_over.set()
                    self._outcomes.put((place, connection, met))
                    return
        except BaseException:
            connection.close()
            raise
        connection.hang_up()
        connection.close()

    def _converse(self, place: int, connection: ControlConnection) -> messages.Met | None:
        told: bool | None = None
        wait = self._meetings.wait(place, self._until - time.monotonic())
        while not self._is_over.is_set():
            aside = is_aside(place, self._places, self._reached)
            now = time.monotonic()
            if aside is not None and aside != told:
                connection.send(self._meetings.message(place, self._step, self._lost, self._until - now, aside))
                told = aside
            try:
                answer = connection.receive(now + SLICE_S)
            except TimeoutError:
                if now >= self._until + GRACE_S:
                    raise
                if told is not None and now >= wait.next_question:
                    wait.ask(connection)
                continue
            match answer:
                case messages.Met():
                    return answer
                case messages.SlotState() as state:
                    wait.warn(state)
                case messages.Refused(kind, text):
                    raise Failure(kind, text).exception()
                case _:
                    raise msgspec.DecodeError(
                        f"the switch answered {type(answer).__name__} to a host that wants to meet"
                    )
        return None

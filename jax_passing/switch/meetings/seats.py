"""A host that meets others has a seat: its connection, kept as long as its session lasts (docs/train/elastic.md)."""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.jobs.epochs import who


class ToHost(Protocol):
    """This is the way to a host that has a seat: its connection, or its part of the connection to its rack's switch."""

    @property
    def host(self) -> str:
        """Returns the IP address at the other end of the connection."""

    @property
    def own_name(self) -> str:
        """Returns our address at this end of it, for people."""

    def send(self, message: messages.Message) -> bool: ...

    def close(self) -> None:
        """Ends the connection after what was sent."""


Refuse = Callable[[ToHost, str, str, str], None]  # the way to the host, its job, why, and the kind of error


class Seat(Protocol):
    """A switch keeps a seat for a host that meets others, as long as the host's connection is open; or for all such
    hosts of a rack, as long as that of their switch is."""

    def hear(self, message: messages.FromMember) -> None:
        """Hears what the other end says. Raises msgspec.DecodeError if that makes no sense."""

    def leave(self) -> None:
        """Is called when the other end is gone."""


class HostSeat:
    """This is the seat of a host, at the switch where hosts meet.

    Attributes:
      said: what the host said, while it waits.
      came: when it said something for the first time.
      since: when it began to wait.
      meeting: the last one that the host said, or was told last; 0: none.
      instance: tells the host's process from any other.
      rank: the one that the host said, or was told last.
      is_rehearsing: it compiles its programs, and nobody waits for it.
      alike: its facts, which are those of all hosts of the job.
    """

    def __init__(
        self,
        connection: ToHost,
        job: str,
        wait: Callable[["HostSeat", messages.Meet], None],
        leave: Callable[["HostSeat"], None],
        why_not: Callable[[], str],
    ):
        """`wait`, `leave`: called when the host says that it waits, and when it is gone. `why_not`: says why it still
        waits."""
        self.connection = connection
        self._job = job
        self._wait = wait
        self._leave = leave
        self._why_not = why_not
        self.said: messages.Meet | None = None
        self.came = self.since = 0.0
        self.meeting = 0
        self.instance = ""
        self.rank = 0
        self.is_rehearsing = False
        self.alike: Mapping[str, str] = {}
        self._started_as: int | None = None

    def asks(self, said: messages.Meet, now: float) -> None:
        """The host waits from now on, or says that it will."""
        self.said, self.since = said if said.ready else None, now
        self.instance, self.rank, self.meeting = said.instance, said.rank, said.meeting
        self.alike, self._started_as, self.is_rehearsing = said.alike, said.started_as, False

    @property
    def who(self) -> str:
        """Names the host for people."""
        return who(self.rank, self.connection.host, self._started_as)

    @property
    def asked(self) -> messages.Meet:
        """Returns what the host said, while it waits."""
        assert self.said is not None
        return self.said

    def hear(self, message: messages.FromMember) -> None:
        if isinstance(message, messages.Heartbeat):
            self.connection.send(message)
        elif isinstance(message, messages.Query):
            if self.said is not None:  # else all have come meanwhile
                answer_query(self.connection, self._why_not())
        else:
            self._wait(self, meet_of(self._job, message))

    def leave(self) -> None:
        self._leave(self)


def answer_query(host: ToHost, why_not: str) -> None:
    """Tells a host for whom it waits."""
    host.send(messages.SlotState(left=(), trouble=why_not[: messages.TEXT_MAX]))


def meet_of(job: str, message: messages.FromMember) -> messages.Meet:
    """Checks what a host says that has a seat in this job. Raises msgspec.DecodeError if it makes no sense."""
    if not isinstance(message, messages.Meet):
        raise msgspec.DecodeError(f"{type(message).__name__} from a host that meets others")
    if message.job != job:
        raise msgspec.DecodeError("a seat is of one job")
    return message

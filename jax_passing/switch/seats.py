"""The seats of hosts that meet: a host's connection, which it keeps as long as its session lasts (docs/elastic.md)."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from jax_passing.protocol import control_messages as messages


class ToHost(Protocol):
    """What a seat needs of the way to its host: a connection, or a part of the one to its rack's switch."""

    @property
    def host(self) -> str:
        """The IP address at the other end of the connection."""

    @property
    def own_name(self) -> str:
        """Our address at this end of it, for people."""

    def send(self, message: messages.Message) -> bool: ...

    def close(self) -> None:
        """After what was sent."""


Refuse = Callable[[ToHost, str, str], None]  # the way to the host, its job, why


class Seat(Protocol):
    """What a switch has for a host that meets others, from its first message on; or for all such hosts of a rack."""

    def hear(self, message: messages.FromMember) -> None:
        """It says this. Raises msgspec.DecodeError if that makes no sense."""

    def leave(self) -> None:
        """It has given its place up, or is gone."""


class HostSeat:
    """A host's, at the switch that decides.

    Attributes:
      gather: what the host said, while it waits.
      since: when it began to.
      rank: as it said, or was told last.
    """

    def __init__(
        self,
        connection: ToHost,
        job: str,
        wait: Callable[["HostSeat", messages.Gather], None],
        leave: Callable[["HostSeat"], None],
    ):
        """`wait`, `leave`: the meeting's, which hears that the host waits, or is gone."""
        self.connection = connection
        self._job = job
        self._wait = wait
        self._leave = leave
        self.gather: messages.Gather | None = None
        self.since = 0.0
        self.instance = ""
        self.rank = 0

    @property
    def asked(self) -> messages.Gather:
        assert self.gather is not None
        return self.gather

    def hear(self, message: messages.FromMember) -> None:
        self._wait(self, gather_of(self._job, message))

    def leave(self) -> None:
        self._leave(self)


def gather_of(job: str, message: messages.FromMember) -> messages.Gather:
    """What a host in a seat of this job said. Raises msgspec.DecodeError."""
    if not isinstance(message, messages.Gather):
        raise msgspec.DecodeError(f"{type(message).__name__} from a host that meets others")
    if message.job != job:
        raise msgspec.DecodeError("a seat is of one job")
    return message

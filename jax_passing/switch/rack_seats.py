"""The seats of a rack's hosts, which the root of a tree has (docs/elastic.md): both ends of the way there.

A rack's switch has one connection to its parent for all seats of a job, however many hosts there are. So they take one
of the connections that an address may have.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import msgspec

from jax_passing.errors import JoinError
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.alike import protocol_difference
from jax_passing.switch import quotas
from jax_passing.switch.outside import Connection

log = logging.getLogger("jax_passing.switch")


class ToHost(Protocol):
    """What a seat needs of the way to its host: a connection, or a part of the one to its rack's switch."""

    @property
    def host(self) -> str:
        """The IP address at the other end of the connection."""

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


class SeatsOfRack:
    """At the parent: all seats of a job that one rack's switch speaks for."""

    def __init__(
        self, connection: Connection, new_seat: Callable[[ToHost], Seat], refuse: Refuse, counts: Counter[str]
    ):
        """`counts`: how many such seats each address has."""
        self._connection = connection
        self._new_seat = new_seat
        self._refuse = refuse
        self._counts = counts
        self._seats: dict[int, Seat] = {}

    def hear(self, message: messages.FromMember) -> None:
        if not isinstance(message, messages.RackGather):
            raise msgspec.DecodeError(f"{type(message).__name__} from a switch whose hosts meet others")
        if message.gather is None:
            if message.seat in self._seats:
                self._pop(message.seat).leave()
            return
        if message.seat not in self._seats:
            host = self._connection.host
            to_host = _ThroughRack(self, message.seat, host)
            if self._counts[host] >= quotas.RANKS_PER_ADDRESS:
                why = f"{self._counts[host]} hosts have seats here through switches at {host}, as many as may be."
                self._refuse(to_host, message.gather.job, why)
                return
            self._counts[host] += 1
            self._seats[message.seat] = self._new_seat(to_host)
        self._seats[message.seat].hear(message.gather)

    def send(self, seat: int, answer: messages.Gathered | messages.Refused | None) -> bool:
        return self._connection.send(messages.RackGathered(seat, answer))

    def close(self, seat: int) -> None:
        if seat in self._seats:
            self._pop(seat)
        self.send(seat, None)

    def leave(self) -> None:
        while self._seats:
            self._pop(next(iter(self._seats))).leave()

    def _pop(self, seat: int) -> Seat:
        host = self._connection.host
        self._counts[host] -= 1
        if not self._counts[host]:
            del self._counts[host]
        return self._seats.pop(seat)


class _ThroughRack:
    """To the host in one of these seats."""

    def __init__(self, seats: SeatsOfRack, number: int, host: str):
        self._seats = seats
        self._number = number
        self.host = host

    def send(self, message: messages.Message) -> bool:
        assert isinstance(message, messages.Gathered | messages.Refused)
        return self._seats.send(self._number, message)

    def close(self) -> None:
        self._seats.close(self._number)


class SeatsAtParent:
    """At the rack's switch: the connection to its parent. What either side says is handed on to the other. When the
    connection ends, those of all these hosts do, as if this switch were lost, and they come again."""

    line_bytes_max = messages.LINE_BYTES_MAX

    def __init__(self, name: str, job: str, key: bytes | None, forget: Callable[[str], object]):
        """`forget`: called with the job when no more seats can be had here."""
        self._name, self._job, self._key = name, job, key
        self._forget = forget
        self._connection: Connection | None = None
        self._seats: dict[int, SeatAtParent] = {}
        self._numbers = itertools.count()
        self._is_secured = self._is_greeted = self._is_over = False

    def seat(self, host: ToHost) -> "SeatAtParent":
        number = next(self._numbers)
        self._seats[number] = SeatAtParent(self, number, self._job, host)
        return self._seats[number]

    def tell(self, number: int, gather: messages.Gather) -> None:
        """The parent, now or as soon as it can be told."""
        if self._is_greeted and number in self._seats:
            assert self._connection is not None
            self._connection.send(messages.RackGather(number, gather))

    def leave(self, number: int) -> None:
        if self._seats.pop(number, None) is None:
            return
        if not self._seats:
            self._end()
        elif self._is_greeted:
            assert self._connection is not None
            self._connection.send(messages.RackGather(number, None))

    def opened(self, connection: Connection) -> None:
        self._connection = connection
        if self._is_over:
            connection.close()

    def secured(self) -> None:
        self._is_secured = True

    def heard(self, line: bytes) -> None:
        if self._is_over:
            return
        try:
            self._on_message(messages.decode_from_parent(line))
        except msgspec.DecodeError as error:
            self.closed(error)

    def _on_message(self, message: messages.FromParent) -> None:
        """The greeting as `ParentConversation` takes it, then what is for the hosts."""
        assert self._connection is not None
        match message:
            case messages.Secured() if self._key is not None and not self._is_secured:
                self._connection.secure(self._key)
            case messages.Hello(version) if version != messages.PROTOCOL_VERSION:
                versions = version, "the switch below it", messages.PROTOCOL_VERSION
                self._refuse_all(
                    messages.Refused(JoinError.__name__, protocol_difference(self._name, *versions, "that switch"))
                )
            case messages.Hello(secured=secured) if secured != (self._key is not None):
                text = (
                    f"Of the switch at {self._name} and the one below it, one has a key, and the other has none: start "
                    "both with the same --key-file."
                )
                self._refuse_all(messages.Refused(JoinError.__name__, text))
            case messages.Hello() if self._key is not None and not self._is_secured:
                self._connection.send(messages.Secure(self._job))
            case messages.Hello():
                self._is_greeted = True
                for number, seat in self._seats.items():
                    self.tell(number, seat.gather)
            case messages.RackGathered(number, answer) if self._is_greeted:  # by who has the key, where we have one
                self._on_answer(number, answer)
            case messages.Refused():
                self._refuse_all(message)
            case _:
                raise msgspec.DecodeError(f"{type(message).__name__} for hosts that meet others")

    def _on_answer(self, number: int, answer: messages.Gathered | messages.Refused | None) -> None:
        seat = self._seats.get(number)
        if seat is None:
            return  # it has left meanwhile
        if answer is None:
            seat.host.close()
        else:
            seat.host.send(answer)

    def _refuse_all(self, refused: messages.Refused) -> None:
        for seat in self._seats.values():
            seat.host.send(refused)
        self._end()

    def closed(self, error: Exception | None) -> None:
        if not self._is_over:
            log.info("hosts of job %r that meet at %s: %s", self._job, self._name, error or "it closed the connection")
            self._end()

    def _end(self) -> None:
        """Of the connection, and of the hosts' that are left."""
        if self._is_over:
            return
        self._is_over = True
        self._forget(self._job)
        for seat in self._seats.values():
            seat.host.close()
        self._seats.clear()
        if self._connection is not None:
            self._connection.close()


class SeatAtParent:
    """Of one host.

    Attributes:
      gather: what the host said last.
    """

    gather: messages.Gather

    def __init__(self, at_parent: SeatsAtParent, number: int, job: str, host: ToHost):
        self._at_parent = at_parent
        self._number = number
        self._job = job
        self.host = host

    def hear(self, message: messages.FromMember) -> None:
        self.gather = gather_of(self._job, message)
        self._at_parent.tell(self._number, self.gather)

    def leave(self) -> None:
        self._at_parent.leave(self._number)


def gather_of(job: str, message: messages.FromMember) -> messages.Gather:
    """What a host in a seat of this job said. Raises msgspec.DecodeError."""
    if not isinstance(message, messages.Gather):
        raise msgspec.DecodeError(f"{type(message).__name__} from a host that meets others")
    if message.job != job:
        raise msgspec.DecodeError("a seat is of one job")
    return message

"""The parent of a rack's switch keeps the seats of the rack's hosts here.

A rack's switch has one connection to its parent for all seats of a job, however many hosts there are. So they take one
of the connections that an address may have.
"""

from collections import Counter
from collections.abc import Callable

import msgspec

from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.outside import Connection
from jax_passing.switch.jobs import quotas
from jax_passing.switch.jobs.admission import RefusalError
from jax_passing.switch.meetings.seats import Refuse, Seat, ToHost


class SeatsOfRack:
    """One rack's switch speaks for all these seats of one job."""

    def __init__(
        self,
        connection: Connection,
        new_seat: Callable[[ToHost, tuple[str, ...]], Seat],
        refuse: Refuse,
        counts: Counter[str],
    ):
        """Begins without seats. `new_seat`: makes one for a host, and is told the switches on its way; it may raise
        RefusalError. `refuse`: sends a host away. `counts`: says of each address how many seats it has in this way."""
        self._connection = connection
        self._new_seat = new_seat
        self._refuse = refuse
        self._counts = counts
        self._seats: dict[int, Seat] = {}

    def hear(self, message: messages.FromMember) -> None:
        if isinstance(message, messages.Heartbeat):
            self._connection.send(message)
            return
        if not isinstance(message, messages.RackMeet):
            raise msgspec.DecodeError(f"{type(message).__name__} from a switch whose hosts meet others")
        if message.said is None:
            if message.seat in self._seats:
                self._pop(message.seat).leave()
            return
        if message.seat not in self._seats:
            host = self._connection.host
            to_host = _ThroughRack(self, message.seat, message.host or host, self._connection.own_name)
            try:
                if self._counts[host] >= quotas.RANKS_PER_ADDRESS:
                    count = self._counts[host]
                    raise RefusalError(f"{count} hosts have seats here through switches at {host}, as many as may be.")
                seat = self._new_seat(to_host, message.path)
            except RefusalError as refusal:
                self._refuse(to_host, message.said.job, str(refusal), refusal.kind)
                return
            self._counts[host] += 1
            self._seats[message.seat] = seat
        self._seats[message.seat].hear(message.said)

    def send(self, seat: int, answer: messages.Met | messages.Rehearse | messages.Refused | None) -> bool:
        return self._connection.send(messages.RackMet(seat, answer))

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
    """This is the way to the host in one of these seats."""

    def __init__(self, seats: SeatsOfRack, number: int, host: str, own_name: str):
        self._seats = seats
        self._number = number
        self.host, self.own_name = host, own_name

    def send(self, message: messages.Message) -> bool:
        assert isinstance(message, messages.Met | messages.Rehearse | messages.Refused)
        return self._seats.send(self._number, message)

    def close(self) -> None:
        self._seats.close(self._number)

"""Of the hosts that wait to meet: who goes on, who begins anew, and whose word decides when."""

from dataclasses import dataclass

from jax_passing.switch.seats import HostSeat


@dataclass(frozen=True)
class Parties:
    """Who waits, as they would meet.

    Attributes:
      meeting: the last one of those who have taken the most steps; 0 if nobody was in any.
      survivors: those that were in it and have the state; by their ranks then. They are within one step of each other.
      newcomers: the others. What state they may have is of another time, or of hosts that went on elsewhere.
      decisive: those whose number and patience decide: who was in that meeting; if nobody was in any, all.
    """

    meeting: int
    survivors: list[HostSeat]
    newcomers: list[HostSeat]
    decisive: list[HostSeat]

    @property
    def wanted(self) -> int:
        return max(seat.asked.world_size for seat in (*self.survivors, *self.newcomers))

    @property
    def least(self) -> int:
        return max(seat.asked.world_size_min for seat in (*self.survivors, *self.newcomers))

    @property
    def quorum(self) -> int:
        return max(seat.asked.quorum for seat in self.decisive)

    @property
    def count(self) -> int:
        return min(self.wanted, len(self.survivors) + len(self.newcomers))


def parties_of(waiting: list[HostSeat], last: int) -> Parties:
    """Of hosts that wait. `last`: the last meeting that was held here."""
    in_order = sorted(waiting, key=lambda seat: (seat.rank, seat.since))
    returned = [seat.asked for seat in in_order if seat.asked.meeting]
    steps = [-1 if gather.step is None else gather.step for gather in returned]
    most = max(zip(steps, returned, strict=True), key=lambda one: (one[0], one[1].meeting == last), default=None)
    meeting = 0 if most is None else most[1].meeting
    back = [seat for seat in in_order if seat.asked.meeting == meeting != 0]
    survivors = [seat for seat in back if seat.asked.step is not None]
    return Parties(meeting, survivors, [seat for seat in in_order if seat not in survivors], back or in_order)

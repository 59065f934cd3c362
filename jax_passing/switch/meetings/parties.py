"""Hosts that wait to meet form parties: some go on, some begin anew, and some decide when."""

from collections.abc import Mapping
from dataclasses import dataclass

from jax_passing.switch.meetings.seats import HostSeat


@dataclass(frozen=True)
class Parties:
    """The hosts that wait have these parts in a meeting, if it were now.

    Attributes:
      meeting: the last meeting of the hosts that have taken the most steps; 0 if nobody was in any.
      survivors: the hosts that were in that meeting and have the state, in the order of their ranks. They are within
        one step of each other.
      newcomers: all others. If they have a state, it is of another time, or of hosts that went on elsewhere.
      decisive: the hosts whose number and patience count: those that were in that meeting, or all if nobody was in any.
      quorum: how many of these must be here.
    """

    meeting: int
    survivors: list[HostSeat]
    newcomers: list[HostSeat]
    decisive: list[HostSeat]
    quorum: int

    @property
    def wanted(self) -> int:
        return max(seat.asked.world_size for seat in (*self.survivors, *self.newcomers))

    @property
    def least(self) -> int:
        return max(seat.asked.world_size_min for seat in (*self.survivors, *self.newcomers))

    @property
    def chosen(self) -> list[HostSeat]:
        """Returns those that go on, in the order of their new ranks."""
        return [*self.survivors, *self.newcomers][: self.wanted]

    @property
    def count(self) -> int:
        return len(self.chosen)

    @property
    def are_enough(self) -> bool:
        return self.count >= self.least and len(self.decisive) >= self.quorum

    def are_patient(self, now: float) -> bool:
        """Says whether they wait for more hosts, as long as some are wanted, or at first for switches that start."""
        is_dark = self.meeting == 0 and any(seat.asked.dark for seat in self.chosen)
        return (self.count < self.wanted or is_dark) and now < max(
            seat.since + seat.asked.wait_s for seat in self.decisive
        )


def newcomers_of(
    seats: list[HostSeat], met: set[str], held: Mapping[int, int], epoch_stands: bool
) -> tuple[list[HostSeat], list[HostSeat]]:
    """Returns the newcomers that wait, and the hosts that run the job, if that is known.

    `met`: the instances of the hosts that met here last. `held`: as in `parties_of`. `epoch_stands`: hosts join or run.
    Then whoever has been at another meeting isn't judged: it may be they that went on elsewhere.
    """
    waiting = [seat for seat in seats if seat.said is not None]
    if not epoch_stands and any(seat.asked.meeting for seat in waiting):
        old = parties_of(waiting, held).decisive
        return [seat for seat in waiting if seat not in old], old
    old = [seat for seat in seats if seat.instance in met]
    return [seat for seat in waiting if seat not in old and not seat.asked.meeting], old


def parties_of(waiting: list[HostSeat], held: Mapping[int, int]) -> Parties:
    """Sorts the hosts that wait. `held`: the meetings that were held here, with how many hosts, the last one at the
    end. Half of the hosts of such a meeting are enough: more than half, as it takes elsewhere, can't be there."""
    last = next(reversed(list(held)), 0)
    in_order = sorted(waiting, key=lambda seat: (seat.rank, seat.since))
    returned = [seat.asked for seat in in_order if seat.asked.meeting]
    steps = [-1 if said.step is None else said.step for said in returned]
    most = max(zip(steps, returned, strict=True), key=lambda one: (one[0], one[1].meeting == last), default=None)
    meeting = 0 if most is None else most[1].meeting
    back = [seat for seat in in_order if seat.asked.meeting == meeting != 0]
    survivors = [seat for seat in back if seat.asked.step is not None]
    newcomers, decisive = [seat for seat in in_order if seat not in survivors], back or in_order
    quorum = max(seat.asked.quorum for seat in decisive)
    if meeting in held:
        quorum = min(quorum, (held[meeting] + 1) // 2)
    return Parties(meeting, survivors, newcomers, decisive, quorum)

"""A meeting waits for hosts that were in the last one: those that live, and for a while those that may be on their
way."""

from collections.abc import Mapping

from jax_passing.switch.meetings.parties import Parties
from jax_passing.switch.meetings.seats import HostSeat

# Hosts whose switch is lost come as soon as they notice, in about a sixth of a lease, whatever their programs do.
GRACE_S, GRACE_LEASES = 1.0, 0.25


def away(seats: list[HostSeat], parties: Parties, held: Mapping[int, int], lost: set[str]) -> list[HostSeat]:
    """Returns the seats of hosts that were in the last meeting of those that wait, if in any, and aren't ready.

    `held`: as in `parties_of`. `lost`: instances of hosts that are known to be lost.
    """
    meetings = held if parties.meeting in (0, *held) else {parties.meeting}
    known = [seat for seat in seats if seat.meeting in meetings and seat.instance not in lost]
    return sorted((seat for seat in known if seat.said is None and not seat.is_rehearsing), key=lambda seat: seat.rank)


def unseen(seats: list[HostSeat], parties: Parties, held: Mapping[int, int]) -> int:
    """Says how many hosts of that meeting never came here, if it was held elsewhere, or before this switch was
    restarted: whether they live isn't known."""
    if parties.meeting == 0 or parties.meeting in held:
        return 0
    came = sum(seat.meeting == parties.meeting for seat in seats)
    return max(0, min(seat.asked.hosts for seat in parties.decisive) - came)


def may_come(seats: list[HostSeat], parties: Parties, held: Mapping[int, int], now: float, lease_s: float) -> bool:
    """Says whether these may still be on their way, as the others have been until now. `lease_s`: the switch's."""
    last = max(seat.came for seat in seats if seat.meeting == parties.meeting)
    grace_s = GRACE_S + GRACE_LEASES * min(lease_s, max(seat.asked.lease_s for seat in parties.decisive))
    return unseen(seats, parties, held) > 0 and now < last + grace_s

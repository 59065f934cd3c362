"""Hosts that meet say why. A switch where they didn't run learns it from nobody else: it was lost itself, or stood in
for another one."""

from collections.abc import Sequence

from jax_passing.errors import SwitchLostError, names
from jax_passing.switch.jobs.recoveries import Interruption
from jax_passing.switch.meetings.seats import HostSeat

MISSING_MAX = 16  # ranks that are named


def interruption_of(survivors: Sequence[HostSeat]) -> Interruption | None:
    """Returns what ended the epoch of these hosts, which have met; None if they don't say. With a lost switch, hosts
    may have been lost that it would have named: these are the ranks that haven't come."""
    told = [
        (seat.since - said.interruption.ago_s, said.interruption)
        for seat in survivors
        if (said := seat.asked).interruption is not None
    ]
    if not told:
        return None
    at, first = min(told, key=lambda one: one[0])
    if first.kind != SwitchLostError.__name__:
        return Interruption(at, at, None, first.kind, "", (), first.text)
    culprit = f"the switch at {first.switches}"
    here = {seat.asked.rank for seat in survivors}
    missing = sorted(set(range(max(seat.asked.hosts for seat in survivors))) - here)
    if 0 < len(missing) <= MISSING_MAX:
        culprit += f", and {names(missing)}"
    return Interruption(at, at, None, first.kind, culprit, tuple(missing), first.text)

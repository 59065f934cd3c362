"""Hosts that meet say why. A switch where they didn't run learns it from nobody else: it was lost itself, or stood in
for another one."""

from collections.abc import Sequence

from jax_passing.config import parse_address
from jax_passing.errors import SwitchLostError, names
from jax_passing.switch.jobs.recoveries import Interruption
from jax_passing.switch.meetings.seats import HostSeat

MISSING_MAX = 16  # ranks that are named


def interruption_of(survivors: Sequence[HostSeat], ran_until: float) -> Interruption | None:
    """Returns what ended the epoch of these hosts, which have met; None if they don't say. With a lost switch, hosts
    may have been lost that it would have named: these are the ranks that haven't come. If hosts say different times,
    the one in the middle counts, so that none of many hosts can make up another one.

    `ran_until`: the job ran here until then, so nothing has interrupted it before."""
    told = [
        (seat.since - said.interruption.ago_s, said.interruption)
        for seat in survivors
        if (said := seat.asked).interruption is not None
    ]
    if not told:
        return None
    told.sort(key=lambda one: one[0])
    at, chosen = told[len(told) // 2]
    at = max(at, ran_until)
    if chosen.kind != SwitchLostError.__name__:
        return Interruption(at, at, None, chosen.kind, f"{chosen.kind}, as hosts say", (), chosen.text)
    culprit = f"the switch at {chosen.switches}" if _are_addresses(chosen.switches) else "a switch"
    here = {seat.asked.rank for seat in survivors}
    missing = sorted(set(range(max(seat.asked.hosts for seat in survivors))) - here)
    if 0 < len(missing) <= MISSING_MAX:
        culprit += f", and {names(missing)}"
    return Interruption(at, at, None, chosen.kind, f"{culprit}, as hosts say", tuple(missing), chosen.text)


def _are_addresses(text: str) -> bool:
    """Checks the names of switches, of which hosts may say anything."""
    try:
        for one in text.split(" and "):
            parse_address(one)
    except ValueError:
        return False
    return True

"""Says why the hosts of a job that wait don't meet yet. Pure."""

from collections.abc import Collection, Mapping

from jax_passing.errors import names
from jax_passing.switch.jobs.epoch_states import EpochState
from jax_passing.switch.jobs.epochs import Job, listed
from jax_passing.switch.meetings.absence import away, unseen
from jax_passing.switch.meetings.parties import parties_of
from jax_passing.switch.meetings.seats import HostSeat

SAME_WAY = "Set world_size_min and standby alike on all hosts."


def why_not(job: Job | None, name: str, seats: list[HostSeat], met: Collection[str], held: Mapping[int, int]) -> str:
    """Says why.

    Args:
      job: the one of that name, if the switch remembers any.
      met: the instances of the hosts that met last.
      held: the meetings that were held here, with how many hosts.
    """
    if unmet := _joins_unmet(job, met):
        return (
            f"{names(unmet).capitalize()} {'waits' if len(unmet) == 1 else 'wait'} to join this job without "
            f"meeting anybody, having neither world_size_min nor a standby. {SAME_WAY}"
        )
    if job is not None and job.epoch is not None:
        return f"It runs with {job.epoch.world_size} hosts: stop that run, or choose another job name."
    waiting = [seat for seat in seats if seat.said is not None]
    if not waiting:  # one that was just sent away asks
        return "Nobody waits here any more."
    parties = parties_of(waiting, held)
    least = max(parties.least, parties.quorum)
    here = listed({seat.rank: seat.who for seat in waiting})
    absent = [seat.who for seat in away(seats, parties, held, set() if job is None else job.lost)]
    if count := unseen(seats, parties, held):
        absent.append(f"{count} of the hosts that ran")
    missing = f" {' and '.join(absent).capitalize()} didn't come." if absent else ""
    aside = " All of them wait at the switch that goes before this one." if all(s.asked.aside for s in waiting) else ""
    return (
        f"Here {'is' if len(waiting) == 1 else 'are'} {here}, and it needs {least} hosts.{missing}{aside} Are the "
        "others running, with the same job name and switches? Lower world_size_min if fewer may go on."
    )


def _joins_unmet(job: Job | None, met: Collection[str]) -> list[int]:
    """Returns the ranks of hosts that wait to join the job, and haven't met anybody."""
    if job is None or job.epoch is None or job.epoch.state is not EpochState.FORMING:
        return []
    return sorted(rank for rank, join in job.epoch.joined().items() if join.instance not in met)

"""Ranks wait only so long for the others of their job, and hear why they have waited in vain."""

from collections.abc import Callable

from jax_passing.errors import JoinError, SwitchUnreachableError, names
from jax_passing.protocol import control_messages as messages
from jax_passing.switch.jobs.admission import differences
from jax_passing.switch.jobs.epoch_states import EpochState
from jax_passing.switch.jobs.epochs import Epoch
from jax_passing.switch.jobs.jobs import JobTable

# A group is probed for 4.2 s at most, at all levels of a tree at the same time. A member that takes longer is stuck,
# and the others' slots with it.
PREPARE_S = 30.0
HERE_SHOWN_MAX = 16  # hosts with their addresses
PARENT_GRACE_S = 1.0  # the root keeps the join deadlines, and knows who is absent; for its answer


def end_waits(jobs: JobTable, epoch: Epoch, now: float) -> None:
    """Ends the waits of ranks that have waited long enough. The root keeps the deadlines of all."""
    if epoch.state is EpochState.RUNNING:
        return
    uplink = epoch.uplink
    grace_s = PARENT_GRACE_S if uplink is not None and uplink.is_connected else 0.0
    stuck = epoch.state is EpochState.PREPARING and uplink is None and now >= epoch.preparing_since + PREPARE_S
    late = [
        (member.ranks[rank], until)
        for member in epoch.members
        for rank, until in member.join_until.items()
        if now >= until + grace_s or (stuck and not member.prepared)
    ]
    # Asked once, before the first of them is sent away: to the next one that one isn't absent.
    if not late or (why := _why_not_started(epoch)) is None:
        return
    unreachable = uplink is not None and not uplink.is_connected
    kind = (SwitchUnreachableError if unreachable else JoinError).__name__
    text = ""
    for join, until in late:
        waited = f"the {join.join_deadline_s:.1f} s that rank {join.rank} waited"
        text = why(f"within {waited if now >= until else f'{PREPARE_S:g} s'}")[: messages.TEXT_MAX]
        jobs.refuse(epoch, messages.Refused(kind, text, join.rank))
    who = f"{names(sorted(join.rank for join, _ in late))} of {epoch}"
    jobs.chronicle.refused(who, text, job=epoch.job.name, kind=kind, reason="absent")


def whom_it_awaits(epoch: Epoch) -> str:
    """Says for whom a rank waits that asks while the epoch forms."""
    uplink = epoch.uplink
    if uplink is not None and uplink.is_connected:
        here = names(sorted(epoch.joined())).capitalize()
        return (
            f"{here} of job {epoch.job.name!r} (world size {epoch.world_size}) came to this switch. Its parent, the "
            f"switch at {uplink.name}, waits for the others. Here: {_who_is_here(epoch)}."
        )
    why = _why_not_started(epoch)
    return "All are here." if why is None else why("so far")[: messages.TEXT_MAX]


def _who_is_here(epoch: Epoch) -> str:
    """Lists ranks with their addresses, and the names of their machines: who knows these sees which one is missing."""
    joined = sorted(epoch.joined().items())
    shown = [
        f"rank {rank} ({join.host}{f', {join.host_name}' if join.host_name else ''})"
        for rank, join in joined[:HERE_SHOWN_MAX]
    ]
    more = [f"{len(joined) - HERE_SHOWN_MAX} more"] if len(joined) > HERE_SHOWN_MAX else []
    return ", ".join([*shown, *more])


def _why_not_started(epoch: Epoch) -> Callable[[str], str] | None:
    """Returns what to say to a rank, by how long it has waited; None if the epoch is about to be started."""
    job, uplink = f"job {epoch.job.name!r} (world size {epoch.world_size})", epoch.uplink
    if uplink is not None:
        return lambda waited: uplink.explain(f"{job} didn't start {waited}")
    if epoch.state is EpochState.PREPARING:
        late = ", ".join(str(member) for member in epoch.members if not member.prepared)
        if not late:
            return None
        return lambda waited: f"No answer from {late}: {job} didn't start {waited}. Look at its log."
    if epoch.refusal:
        advice = f"One host was refused: {epoch.refusal}"
    else:
        advice = (
            "Are those hosts running, with the same job name, and the same switches in the same order? Raise "
            "join_deadline_s if they start later."
        )
    if here := _who_is_here(epoch):
        advice = f"{advice} Here: {here}."
    if unlike := differences(epoch):
        advice = f"{advice} Besides: {unlike}"
    absent, gone = [rank for rank in epoch.absent() if rank not in epoch.gone], sorted(epoch.gone)
    if not absent:
        who = names(gone)
        return lambda waited: f"All hosts of {job} came, but not at once {waited}: {who} went again. {advice}"
    if gone:
        advice = f"{names(gone).capitalize()} came, and went again. {advice}"
    who = names(absent).capitalize()
    return lambda waited: f"{who} of {job} didn't join {waited}. {advice}"

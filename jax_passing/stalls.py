"""What to say about a sum that makes no progress: who is missing, where, for how long."""

import logging
from collections.abc import Callable, Sequence

from jax_passing._native import Stall
from jax_passing.control_messages import Query, SlotState
from jax_passing.errors import Failure, HostLostError

log = logging.getLogger("jax_passing")


def names(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def explain(stall: Stall, state: SlotState | None, rank: int) -> tuple[str, tuple[int, ...]]:
    """A sentence on whom the sum waits for, and those of them that have left the job.

    Args:
      stall: the oldest unfinished sum of this host.
      state: what the switch said about its slot; None if nothing.
      rank: this host's.
    """
    if state is None:
        return "The switch doesn't answer questions about it.", ()
    if stall.waits_for_order:
        missing: tuple[int, ...] = (0,)
        text = "It waits for rank 0, which decides the order of sums and hasn't started this one."
    elif state.empty or state.sequence != stall.sequence:
        missing = state.missing
        text = "The switch has this chunk from no rank, not even this one: does UDP reach its data port?"
    elif state.complete:
        missing = ()
        text = "The switch has it from all ranks, but its answers don't arrive: does UDP from its data port reach us?"
    else:
        missing = state.missing
        text = f"Missing: {names(missing)}."
        if missing == (rank,):
            text += " That is this one: does UDP reach the switch's data port?"
    gone = tuple(sorted(set(missing) & set(state.left)))
    return text + (f" Of these, {names(gone)} left the job." if gone else ""), gone


class StallReporter:
    """Asks the switch about stalls and warns: at once, then ever more rarely."""

    def __init__(self, *, rank: int, epoch: int, ask: Callable[[Query], SlotState | None]):
        self._rank = rank
        self._epoch = epoch
        self._ask = ask
        self._about: tuple[object, ...] = ()
        self._next_warning_s = 0.0

    def report(self, stall: Stall, stalled_s: float) -> tuple[str, Failure | None]:
        """A note for the error at the deadline, and a failure if the wait is in vain. Asks the switch, may log."""
        query = Query() if stall.waits_for_order else Query(stall.slot, stall.version)
        note, gone = explain(stall, self._ask(query), self._rank)
        place = (
            f"epoch {self._epoch}"
            if stall.waits_for_order
            else f"slot {stall.slot}, version {stall.version}, sequence {stall.sequence}, epoch {self._epoch}"
        )
        sum_text = f"{stall.site_name} (occurrence {stall.occurrence}; {place})"
        about = (stall.site_name, stall.occurrence, stall.sequence)
        if about != self._about or stalled_s >= self._next_warning_s:
            self._about, self._next_warning_s = about, 2 * stalled_s
            log.warning("rank %d has waited %.1f s for %s. %s", self._rank, stalled_s, sum_text, note)
        if not gone:
            return note, None
        return note, Failure(
            HostLostError.__name__,
            f"Rank {self._rank} waits for {sum_text}, but {names(gone)} left the job without it. All hosts must run "
            "the same number of steps before shutdown.",
            gone,
        )

"""Finds the positions where a model may be cut, and what keeps its slowest stage from being faster."""

import itertools

import numpy as np
from numpy.typing import NDArray

from jax_passing.errors import UsageError
from jax_passing.partitioning.cut import is_mark
from jax_passing.partitioning.memory import Floats
from jax_passing.partitioning.operations import CHECKPOINT, ScanTurn, holds_operations
from jax_passing.partitioning.search import slowest_share
from jax_passing.partitioning.stages import Slicer

NOTABLE = 1.1  # times as long


def legal_positions(slicer: Slicer, max_live: int, stages: int, compute_s: Floats) -> NDArray[np.bool_]:
    """Tells of each position in the chain whether a cut may be there: at the user's marks, if there are any, else
    where at most `max_live` values cross. Raises UsageError if the positions are too few."""
    if not (marked := _marked(slicer)):
        counts = [len(live) for live in slicer.crossing]
        inner = sorted(counts[1:-1])
        if len(inner) < stages - 1:
            raise UsageError(
                f"The loss has {len(slicer.chain)} operations that depend on both parameters and batch, too few for "
                f"{stages} stages. {_undivided(slicer, stages, compute_s)}".rstrip()
            )
        if stages > 1 and (enough := inner[stages - 2]) > max_live:
            raise UsageError(
                f"There are {sum(count <= max_live for count in inner)} positions where a cut would be crossed by at "
                f"most {max_live} values (max_live), too few for {stages} stages: max_live={enough} allows enough; or "
                "ask for fewer stages."
            )
        return np.array(counts) <= max_live
    if len(marked) < stages - 1:
        raise UsageError(
            f"The model has {len(marked)} marks (jax_passing.cut), too few for {stages} stages: set at least "
            f"{stages - 1} marks, or none."
        )
    legal = np.zeros(len(slicer.crossing), bool)
    legal[marked] = True
    return legal


def notes_on(slicer: Slicer, max_live: int, stages: int, compute_s: Floats) -> tuple[str, ...]:
    """Returns sentences on what keeps the slowest stage from being faster."""
    notes = (_held_back(slicer, max_live, stages, compute_s), _undivided(slicer, stages, compute_s))
    return tuple(filter(None, notes))


def _marked(slicer: Slicer) -> list[int]:
    """Lists the positions of marks."""
    marks = [is_mark(operation) for operation in slicer.chain]
    # A mark of a pytree is one position, behind the marks of all its leaves.
    return [number for number, pair in enumerate(itertools.pairwise([*marks, False]), 1) if pair == (True, False)]


def _undivided(slicer: Slicer, stages: int, compute_s: Floats) -> str:
    """Names the largest operation, if it takes much more than a stage's share and has operations inside of it."""
    largest, total_s = int(np.argmax(compute_s)), compute_s.sum()
    operation = slicer.chain[largest]
    if compute_s[largest] * stages <= NOTABLE * total_s or not holds_operations(operation.eqn):
        return ""
    name, advice = operation.eqn.primitive.name, ""
    if name in CHECKPOINT:
        name, advice = "jax.checkpoint", ": put jax.checkpoint around each layer, instead of around all of them"
    elif isinstance(operation, ScanTurn):
        name = "a turn of the scan"
    share = f"{100 * compute_s[largest] / total_s:.0f} %"
    return (
        f"{name} {operation.source_line or 'of the loss'} is one operation, which isn't cut, with {share} of the "
        f"work{advice}."
    )


def _held_back(slicer: Slicer, max_live: int, stages: int, compute_s: Floats) -> str:
    """Suggests a larger `max_live`, if that would make the slowest stage notably faster."""
    if _marked(slicer):
        return ""
    counts = np.array([len(live) for live in slicer.crossing])[1:-1]

    def share(most: int) -> float:
        return slowest_share(compute_s, np.flatnonzero(counts <= most) + 1, stages)

    now, best = share(max_live), share(counts.max(initial=0))
    if now < NOTABLE * best:
        return ""
    enough = next(most for most in np.unique(counts) if most > max_live and share(most) < 1.01 * best)
    return (
        f"With max_live={max_live} the slowest stage takes {now:.2f} of their mean, with max_live={enough} it would "
        f"take {share(enough):.2f}, if only computing counts."
    )

"""Finds the best cuts of a chain of operations into stages: the exact optimum, by dynamic programming.

The chain has a model's operations in the order in which the loss does them. A stage is a run of them, so values only go
from one stage to the next, which hands on what a later stage needs. This is the node constraint under which Xu et al.
(Computer Science 2024(12), 120-128) search; only the abstract of their paper is public, so this search is ours, in its
spirit. Cutting a chain so that the slowest part is as fast as possible is the linear partition problem (Skiena, The
Algorithm Design Manual, 10.7). Here a part's cost also counts the bytes that cross its ends, and a part that needs more
memory than a device has isn't allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from jax_passing.errors import UsageError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Weight:
    """Describes a parameter, which each stage that uses it holds once."""

    bytes: float  # with its gradient and the optimiser's state
    uses: tuple[int, ...]  # the operations, in order


@dataclass(frozen=True)
class Chain:
    """Describes n operations, with n + 1 positions: before the first, between them, and after the last.

    Attributes:
      compute_s: by operation, the time of its forward and backward pass.
      stash_bytes: by operation, the bytes that it keeps of a microbatch until its backward pass.
      cut_bytes: by position, the bytes that cross a cut there forwards; as many come back.
      may_cut: by position, whether a cut may be there.
      weights: the parameters.
    """

    compute_s: Floats
    stash_bytes: Floats
    cut_bytes: Floats
    may_cut: NDArray[np.bool_]
    weights: Sequence[Weight] = field(default=())

    def __post_init__(self) -> None:
        n = len(self.compute_s)
        assert len(self.stash_bytes) == n
        assert len(self.cut_bytes) == len(self.may_cut) == n + 1


@dataclass(frozen=True)
class Limits:
    """Describes the devices and the links between them.

    Attributes:
      link_bytes_per_s: rate of the link between neighbouring stages, each way; infinite if sending costs nothing.
      overlap: whether devices send while they compute.
      memory_bytes: memory of a device for parameters, optimiser and stashes.
      microbatches: how many are under way at once, at most.
    """

    link_bytes_per_s: float = np.inf
    overlap: bool = True
    memory_bytes: float = np.inf
    microbatches: int = 1


def stage_s(chain: Chain, limits: Limits, first: int, last: int) -> float:
    """Returns how long the stage of operations first to last - 1 is busy with a microbatch."""
    positions = np.array([first, last])
    return float(_stage_costs(chain, limits, positions)[0, 1])


def stage_bytes(chain: Chain, limits: Limits, first: int, last: int, stages_after: int) -> float:
    """Returns the bytes that the stage of operations first to last - 1 holds, if `stages_after` come after it."""
    positions = np.array([first, last])
    weights, stash = _stage_memory(chain, positions)
    return float(weights[0, 1] + _in_flight(limits, stages_after) * stash[0, 1])


def _in_flight(limits: Limits, stages_after: int) -> int:
    """Counts the microbatches that wait for their backward pass under 1F1B (Narayanan et al., PipeDream, SOSP'19)."""
    return min(limits.microbatches, stages_after + 1)


def _stage_costs(chain: Chain, limits: Limits, positions: NDArray[np.int64]) -> Floats:
    """Returns at [a, b] the time of the stage between positions a and b; infinite where b isn't behind a."""
    done = np.concatenate([[0.0], np.cumsum(chain.compute_s)])[positions]
    compute = done[None, :] - done[:, None]
    # Activations cross both ends one way, and gradients the other: each direction of the stage's link carries the bytes
    # that cross both ends.
    crossing = chain.cut_bytes[positions] / limits.link_bytes_per_s
    sending = crossing[None, :] + crossing[:, None]
    cost = np.maximum(compute, sending) if limits.overlap else compute + sending
    is_behind = positions[None, :] > positions[:, None]
    return np.where(is_behind, cost, np.inf)


def _stage_memory(chain: Chain, positions: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Returns at [a, b] the bytes of the parameters that the stage uses, and those that it keeps of one microbatch."""
    kept = np.concatenate([[0.0], np.cumsum(chain.stash_bytes)])[positions]
    used_at: list[list[int]] = [[] for _ in chain.compute_s]
    for number, weight in enumerate(chain.weights):
        for use in weight.uses:
            used_at[use].append(number)
    # A stage holds a weight from its first use on. `steps` has a step for each weight at the operation that uses it
    # first, and the running sum of steps is the memory. If a stage begins earlier, only the steps of the weights that
    # are used in between move.
    steps = np.zeros(len(chain.compute_s) + 1)
    first_use: dict[int, int] = {}
    weights = np.zeros((len(positions), len(positions)))
    begin = len(chain.compute_s)
    for row in reversed(range(len(positions))):
        for operation in reversed(range(positions[row], begin)):
            for number in used_at[operation]:
                size = chain.weights[number].bytes
                if number in first_use:
                    steps[first_use[number] + 1] -= size
                first_use[number] = operation
                steps[operation + 1] += size
        begin = positions[row]
        weights[row] = np.cumsum(steps)[positions]
    return weights, kept[None, :] - kept[:, None]


def best_cuts(chain: Chain, stages: int, limits: Limits | None = None) -> tuple[int, ...]:
    """Returns the positions of the stages - 1 cuts.

    The slowest stage is as fast as it can be; among such cuts, as few bytes as possible cross them. The time that this
    takes grows with the number of stages, and with the square of the number of legal positions.

    Raises UsageError if there are too few legal positions, or if no stages fit into the memory.
    """
    limits = limits or Limits()
    n = len(chain.compute_s)
    inner = np.flatnonzero(chain.may_cut[1:n]) + 1
    if len(inner) < stages - 1:
        raise UsageError(
            f"The model can be cut in {len(inner)} positions, too few for {stages} stages: ask for fewer stages."
        )
    positions = np.concatenate([[0], inner, [n]])
    cost = _stage_costs(chain, limits, positions)
    fits = _what_fits(chain, limits, positions, stages)
    best = _slowest(cost, fits, stages)
    if not np.isfinite(best):
        raise UsageError(
            f"No way to cut the model into {stages} stages fits into {limits.memory_bytes:.3g} bytes for each stage. "
            "Use more stages, a smaller microbatch, or rematerialisation (jax.checkpoint)."
        )
    # The sums of the same numbers in another order differ by rounding.
    allowed = [within & (cost <= best * (1 + 1e-12)) for within in fits]
    return tuple(int(positions[index]) for index in _fewest_bytes(chain.cut_bytes[positions], allowed, stages))


def slowest_share(compute_s: Floats, positions: NDArray[np.int64], stages: int) -> float:
    """Returns the time of the slowest stage over the mean of all, at best and within 0.1 %, if sending took no time and
    memory were unlimited.

    `positions`: where a cut may be, in order. Unlike `best_cuts`, this is fast with all positions of a model.
    """
    done = np.concatenate([[0.0], np.cumsum(compute_s)])
    ends = done[np.concatenate([[0], positions, [len(compute_s)]])]
    least, most = ends[-1] / stages, ends[-1]
    while most - least > 1e-3 * least:
        allowed = (least + most) / 2
        reached = 0.0
        for _ in range(stages):  # each goes as far as it may
            reached = ends[np.searchsorted(ends, reached + allowed, "right") - 1]
        least, most = (least, allowed) if reached == ends[-1] else (allowed, most)
    return float(most * stages / ends[-1]) if ends[-1] else 1.0


def _what_fits(chain: Chain, limits: Limits, positions: NDArray[np.int64], stages: int) -> list[NDArray[np.bool_]]:
    """Tells by stage, at [a, b], whether it fits into the memory if it is between these positions."""
    if not np.isfinite(limits.memory_bytes):
        return [np.ones((len(positions), len(positions)), bool)] * stages
    weights, stash = _stage_memory(chain, positions)
    return [weights + _in_flight(limits, stages - 1 - stage) * stash <= limits.memory_bytes for stage in range(stages)]


def _slowest(cost: Floats, fits: Sequence[NDArray[np.bool_]], stages: int) -> float:
    """Returns the shortest time that the slowest stage can take."""
    reached = np.full(len(cost), np.inf)  # by position: the slowest stage up to it
    reached[0] = 0.0
    for stage in range(stages):
        reached = np.min(np.maximum(reached[:, None], np.where(fits[stage], cost, np.inf)), axis=0)
    return float(reached[-1])


def _fewest_bytes(crossing: Floats, allowed: Sequence[NDArray[np.bool_]], stages: int) -> list[int]:
    """Returns the indices of the cuts that the fewest bytes cross, if all stages are allowed ones."""
    reached = np.full(len(crossing), np.inf)
    reached[0] = 0.0
    before: list[NDArray[np.intp]] = []
    for stage in range(stages):
        sums = np.where(allowed[stage], reached[:, None] + crossing[None, :], np.inf)
        before.append(np.argmin(sums, axis=0))
        reached = np.min(sums, axis=0)
    cuts = []
    position = len(crossing) - 1
    for stage in reversed(range(1, stages)):
        position = int(before[stage][position])
        cuts.append(position)
    return cuts[::-1]

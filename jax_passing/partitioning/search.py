"""Where to cut a chain of operations into stages: the exact optimum, by dynamic programming.

The chain is a program's operations in the program's own order. A stage is a run of them, so values only ever go to the
next stage; what a later one needs is handed on. That is the node constraint under which Xu et al. (Computer Science
2024(12), 120-128) search; only the abstract of their paper is public, so this search is ours, in its spirit. Cutting a
chain so that the slowest part is as fast as possible is the linear partition problem (Skiena, The Algorithm Design
Manual, 10.7). Here a part's cost also counts what crosses its ends, and a part that needs more memory than a device has
is no part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from jax_passing.errors import PartitionError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Weight:
    """A parameter: a stage that uses it holds it, once."""

    bytes: float  # with its gradient and the optimiser's state
    uses: tuple[int, ...]  # the operations, in order


@dataclass(frozen=True)
class Chain:
    """n operations, and n + 1 places between them, before the first and after the last.

    Attributes:
      compute_s: by operation, forward and backward.
      stash_bytes: by operation, what is kept of a microbatch until its backward pass.
      cut_bytes: by place, what crosses a cut there, forwards; as much comes back.
      may_cut: by place.
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
    """
    Attributes:
      link_bytes_per_s: rate of the link between neighbouring stages, each way; infinite if sending costs nothing.
      overlap: sending takes place beside computing.
      memory_bytes: what a device has for parameters, optimiser and stashes.
      microbatches: so many are under way at most.
    """

    link_bytes_per_s: float = np.inf
    overlap: bool = True
    memory_bytes: float = np.inf
    microbatches: int = 1


def stage_s(chain: Chain, limits: Limits, first: int, last: int) -> float:
    """How long the stage of operations first to last - 1 is busy with a microbatch."""
    places = np.array([first, last])
    return float(_stage_costs(chain, limits, places)[0, 1])


def stage_bytes(chain: Chain, limits: Limits, first: int, last: int, stages_after: int) -> float:
    """What such a stage holds, with so many stages behind it."""
    places = np.array([first, last])
    weights, stash = _stage_memory(chain, places)
    return float(weights[0, 1] + _in_flight(limits, stages_after) * stash[0, 1])


def _in_flight(limits: Limits, stages_after: int) -> int:
    """Microbatches whose backward pass is still to come, under 1F1B (Narayanan et al., PipeDream, SOSP'19)."""
    return min(limits.microbatches, stages_after + 1)


def _stage_costs(chain: Chain, limits: Limits, places: NDArray[np.int64]) -> Floats:
    """[a, b]: of the stage between two places; infinite where b isn't behind a."""
    done = np.concatenate([[0.0], np.cumsum(chain.compute_s)])[places]
    compute = done[None, :] - done[:, None]
    # Both ends are used both ways, activations one way and their gradients the other: each direction of the stage's
    # link carries what crosses its two ends.
    crossing = chain.cut_bytes[places] / limits.link_bytes_per_s
    sending = crossing[None, :] + crossing[:, None]
    cost = np.maximum(compute, sending) if limits.overlap else compute + sending
    is_behind = places[None, :] > places[:, None]
    return np.where(is_behind, cost, np.inf)


def _stage_memory(chain: Chain, places: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """[a, b]: bytes of the parameters that a stage uses, and of what it keeps of one microbatch."""
    kept = np.concatenate([[0.0], np.cumsum(chain.stash_bytes)])[places]
    used_at: list[list[int]] = [[] for _ in chain.compute_s]
    for number, weight in enumerate(chain.weights):
        for use in weight.uses:
            used_at[use].append(number)
    # A stage holds a weight from its first use on: as steps over the operations, whose running sum is the memory. If a
    # stage begins earlier, only the steps of what is used in between move.
    steps = np.zeros(len(chain.compute_s) + 1)
    first_use: dict[int, int] = {}
    weights = np.zeros((len(places), len(places)))
    begin = len(chain.compute_s)
    for row in reversed(range(len(places))):
        for operation in reversed(range(places[row], begin)):
            for number in used_at[operation]:
                size = chain.weights[number].bytes
                if number in first_use:
                    steps[first_use[number] + 1] -= size
                first_use[number] = operation
                steps[operation + 1] += size
        begin = places[row]
        weights[row] = np.cumsum(steps)[places]
    return weights, kept[None, :] - kept[:, None]


def best_cuts(chain: Chain, stages: int, limits: Limits | None = None) -> tuple[int, ...]:
    """The places of the stages - 1 cuts.

    The slowest stage is as fast as it can be; among such cuts, as few bytes as possible cross them. Takes stages times
    the square of the number of legal places.

    Raises PartitionError if there are too few legal places, or no stages fit into the memory.
    """
    limits = limits or Limits()
    n = len(chain.compute_s)
    inner = np.flatnonzero(chain.may_cut[1:n]) + 1
    if len(inner) < stages - 1:
        raise PartitionError(
            f"The program can be cut in {len(inner)} places, too few for {stages} stages: ask for fewer stages."
        )
    places = np.concatenate([[0], inner, [n]])
    cost = _stage_costs(chain, limits, places)
    fits = _what_fits(chain, limits, places, stages)
    best = _slowest(cost, fits, stages)
    if not np.isfinite(best):
        raise PartitionError(
            f"No way to cut the program into {stages} stages fits into {limits.memory_bytes:.3g} bytes for each. Use "
            "more stages, a smaller microbatch, or rematerialisation (jax.checkpoint)."
        )
    # Sums of the same numbers in another order differ by rounding.
    allowed = [within & (cost <= best * (1 + 1e-12)) for within in fits]
    return tuple(int(places[index]) for index in _fewest_bytes(chain.cut_bytes[places], allowed, stages))


def slowest_share(compute_s: Floats, places: NDArray[np.int64], stages: int) -> float:
    """The slowest stage over the mean of all, at best and within 0.1 %, if only computing took time and nothing memory.

    `places`: where a cut may be, in order. Takes no tables, so all places of a program may be asked for.
    """
    done = np.concatenate([[0.0], np.cumsum(compute_s)])
    ends = done[np.concatenate([[0], places, [len(compute_s)]])]
    least, most = ends[-1] / stages, ends[-1]
    while most - least > 1e-3 * least:
        allowed = (least + most) / 2
        reached = 0.0
        for _ in range(stages):  # each goes as far as it may
            reached = ends[np.searchsorted(ends, reached + allowed, "right") - 1]
        least, most = (least, allowed) if reached == ends[-1] else (allowed, most)
    return float(most * stages / ends[-1]) if ends[-1] else 1.0


def _what_fits(chain: Chain, limits: Limits, places: NDArray[np.int64], stages: int) -> list[NDArray[np.bool_]]:
    """By stage: [a, b], whether it fits into the memory."""
    if not np.isfinite(limits.memory_bytes):
        return [np.ones((len(places), len(places)), bool)] * stages
    weights, stash = _stage_memory(chain, places)
    return [weights + _in_flight(limits, stages - 1 - stage) * stash <= limits.memory_bytes for stage in range(stages)]


def _slowest(cost: Floats, fits: Sequence[NDArray[np.bool_]], stages: int) -> float:
    """The least that the slowest stage can take."""
    reached = np.full(len(cost), np.inf)  # by place: the slowest stage up to it
    reached[0] = 0.0
    for stage in range(stages):
        reached = np.min(np.maximum(reached[:, None], np.where(fits[stage], cost, np.inf)), axis=0)
    return float(reached[-1])


def _fewest_bytes(crossing: Floats, allowed: Sequence[NDArray[np.bool_]], stages: int) -> list[int]:
    """Indices of the cuts, with stages that are allowed only."""
    reached = np.full(len(crossing), np.inf)
    reached[0] = 0.0
    before: list[NDArray[np.intp]] = []
    for stage in range(stages):
        sums = np.where(allowed[stage], reached[:, None] + crossing[None, :], np.inf)
        before.append(np.argmin(sums, axis=0))
        reached = np.min(sums, axis=0)
    cuts = []
    place = len(crossing) - 1
    for stage in reversed(range(1, stages)):
        place = int(before[stage][place])
        cuts.append(place)
    return cuts[::-1]

"""Says what a stage holds, and which part of its forward pass it computes again so that this fits into a device.

A stage that computes again has *checkpoints*: runs of its first operations, under `jax.checkpoint`. Of a microbatch it
keeps what crosses the beginning of each, and computes a checkpoint's forward pass once more before its backward pass
(Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016). Its last operations keep what their backward passes
need. So a stage is described by how much of it is in checkpoints, and by how large these are: the chain is divided into
checkpoints that keep at most so many bytes while they run, with as few bytes as possible crossing their ends.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SIZES_MAX = 8  # of checkpoints, from the largest operation alone to the whole chain


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
      forward_share: by operation, the forward pass's share of its time.
      work_bytes: by operation, the bytes that its backward pass takes besides what is kept.
    """

    compute_s: Floats
    stash_bytes: Floats
    cut_bytes: Floats
    may_cut: NDArray[np.bool_]
    weights: Sequence[Weight] = field(default=())
    forward_share: Floats | float = 1 / 3
    work_bytes: Floats | float = 0.0

    def __post_init__(self) -> None:
        n = len(self.compute_s)
        assert len(self.stash_bytes) == n
        assert len(self.cut_bytes) == len(self.may_cut) == n + 1


@dataclass(frozen=True)
class Limits:
    """Describes the devices and the links between them, and what is wanted of the stages.

    Attributes:
      link_bytes_per_s: rate of the link between neighbouring stages, each way; infinite if sending costs nothing.
      overlap: whether devices send while they compute.
      memory_bytes: memory of a device for parameters, optimiser and stashes.
      microbatches: how many are under way at once, at most.
      remat: whether stages may compute parts of their forward pass again to fit into the memory.
      imbalance: how much longer than it could the slowest stage may take, as a share, if fewer bytes cross cuts then.
    """

    link_bytes_per_s: float = np.inf
    overlap: bool = True
    memory_bytes: float = np.inf
    microbatches: int = 1
    remat: bool = False
    imbalance: float = 0.0

    def in_flight(self, stages_after: int) -> int:
        """Counts the microbatches that wait for their backward pass under 1F1B (Narayanan et al., PipeDream,
        SOSP'19)."""
        return min(self.microbatches, stages_after + 1)


@dataclass(frozen=True)
class Held:
    """Says at [a, b] what the stage between positions a and b holds.

    Attributes:
      bytes: at most, at once.
      again_s: how long it computes again of a microbatch; infinite if it doesn't fit into the memory.
      size: the index of the checkpoints that it has among `checkpoints_of(chain)`; -1 for none.
      end: the position where the last checkpoint ends.
      least_bytes: the fewest bytes that it could hold.
    """

    bytes: Floats
    again_s: Floats
    size: NDArray[np.int64]
    end: NDArray[np.int64]
    least_bytes: Floats


def held_by_stages(chain: Chain, limits: Limits, positions: NDArray[np.int64], stages_after: int) -> Held:
    """Returns what stages between these positions hold, if `stages_after` come after them: with as little computed
    again as the memory allows."""
    weights, stash = stage_memory(chain, positions)
    weights += _largest(np.broadcast_to(chain.work_bytes, chain.compute_s.shape), positions)
    in_flight = limits.in_flight(stages_after)
    bytes_ = weights + in_flight * (stash + chain.cut_bytes[positions][:, None])
    fits = bytes_ <= limits.memory_bytes
    held = Held(
        bytes_, np.where(fits, 0.0, np.inf), np.full(fits.shape, -1), np.zeros(fits.shape, np.int64), bytes_.copy()
    )
    if not limits.remat or not np.isfinite(limits.memory_bytes):
        return held
    kept = np.concatenate([[0.0], np.cumsum(chain.stash_bytes)])
    forward_s = np.concatenate([[0.0], np.cumsum(chain.compute_s * chain.forward_share)])
    first, last = positions[:, None], positions[None, :]
    for size, checkpoints in enumerate(checkpoints_of(chain)):
        # With the checkpoints that begin in [a, c), the stage keeps, of each microbatch, what crosses their beginnings,
        # and what its operations from c on keep; and, of one, what its largest checkpoint keeps.
        ends = np.array(checkpoints)
        crossing = np.zeros(len(kept) + 1)
        crossing[ends + 1] = chain.cut_bytes[ends]
        before = np.cumsum(crossing)  # at c: the bytes that cross the beginnings before c
        transient = max(np.diff(kept[ends]), default=0.0)
        from_first = (
            weights + transient + in_flight * (kept[last] - before[first + 1] + chain.cut_bytes[first])
        )  # less what it gains by c
        gain = kept - before[:-1]
        missing = (from_first - limits.memory_bytes) / in_flight
        end, most = _first_ends(ends, gain, positions, missing)
        fits = (gain[end] >= missing) & (last > first)
        again_s = np.where(fits, forward_s[end] - forward_s[first], np.inf)
        better = again_s < held.again_s
        held.bytes[better] = (from_first - in_flight * gain[end])[better]
        held.again_s[better], held.size[better], held.end[better] = again_s[better], size, end[better]
        np.minimum(held.least_bytes, from_first - in_flight * most, out=held.least_bytes)
    return held


def _first_ends(
    ends: NDArray[np.int64], gain: Floats, positions: NDArray[np.int64], missing: Floats
) -> tuple[NDArray[np.int64], Floats]:
    """Returns at [a, b] the first of the ends between positions a and b at which a stage gains what is missing, else b,
    and the most that it can gain."""
    found = np.broadcast_to(positions, missing.shape).copy()
    most = np.broadcast_to(gain[positions], missing.shape).copy()
    for row, first in enumerate(positions[:-1]):
        inner = ends[np.searchsorted(ends, first, "right") :]
        so_far = np.maximum.accumulate(gain[inner])
        count = np.searchsorted(inner, positions, "left")  # of ends before b
        at = np.searchsorted(so_far, missing[row], "left")
        found[row] = np.where(at < count, inner[np.minimum(at, len(inner) - 1)], positions)
        most[row] = np.maximum(most[row], np.where(count, so_far[np.maximum(count, 1) - 1], -np.inf))
    return found, most


def checkpoints_of_stage(chain: Chain, limits: Limits, first: int, last: int, stages_after: int) -> tuple[int, ...]:
    """Returns the positions where a stage's checkpoints begin, and where the last one ends; () without any."""
    held = held_by_stages(chain, limits, np.array([first, last]), stages_after)
    if held.size[0, 1] < 0:
        return ()
    end = int(held.end[0, 1])
    inner = [position for position in checkpoints_of(chain)[held.size[0, 1]] if first < position < end]
    return (first, *inner, end)


def checkpoints_of_stages(chain: Chain, limits: Limits, cuts: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns the same for each stage between the cuts."""
    ends = list(itertools.pairwise((0, *cuts, len(chain.compute_s))))
    return [checkpoints_of_stage(chain, limits, *pair, len(cuts) - number) for number, pair in enumerate(ends)]


def checkpoints_of(chain: Chain) -> list[list[int]]:
    """Divides the chain into checkpoints of several sizes: lists of positions, from 0 to the last."""
    total, largest = chain.stash_bytes.sum(), chain.stash_bytes.max(initial=0.0)
    if not largest:
        return []
    ratio = max(2.0, (total / largest) ** (1 / (SIZES_MAX - 1)))
    sizes = [min(largest * ratio**step, total) for step in range(SIZES_MAX) if largest * ratio ** (step - 1) < total]
    return list(map(list, _checkpoints(chain.stash_bytes.tobytes(), chain.cut_bytes.tobytes(), tuple(sizes))))


@functools.lru_cache(maxsize=4)
def _checkpoints(stash: bytes, crossing: bytes, sizes: tuple[float, ...]) -> list[tuple[int, ...]]:
    """Divides by dynamic programming, so that a checkpoint keeps at most `size` bytes, and few bytes cross its ends."""
    kept = np.concatenate([[0.0], np.cumsum(np.frombuffer(stash))])
    cut = np.frombuffer(crossing)
    found = []
    for size in sizes:
        reached, before = np.zeros(len(kept)), np.zeros(len(kept), np.int64)
        starts = np.searchsorted(kept, kept - size * (1 + 1e-12), "left")
        for position in range(1, len(kept)):
            start = min(starts[position], position - 1)
            before[position] = start + np.argmin(reached[start:position])
            reached[position] = reached[before[position]] + cut[position]
        ends = [len(kept) - 1]
        while ends[-1]:
            ends.append(int(before[ends[-1]]))
        found.append(tuple(ends[::-1]))
    return found


def _largest(sizes: Floats, positions: NDArray[np.int64]) -> Floats:
    """Returns at [a, b] the largest size of the operations between positions a and b; 0 if there are none."""
    largest = np.zeros((len(positions), len(positions)))
    for row, position in enumerate(positions):
        running = np.maximum.accumulate(np.concatenate([[0.0], sizes[position:]]))
        largest[row] = running[np.maximum(positions - position, 0)]
    return largest


def stage_memory(chain: Chain, positions: NDArray[np.int64]) -> tuple[Floats, Floats]:
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

"""Finds the best cuts of a chain of operations into stages: the exact optimum, by dynamic programming.

The chain has a model's operations in the order in which the loss does them. A stage is a run of them, so values only go
from one stage to the next, which hands on what a later stage needs. This is the node constraint under which Xu et al.
(Computer Science 2024(12), 120-128) search; only the abstract of their paper is public, so this search is ours, in its
spirit. Cutting a chain so that the slowest part is as fast as possible is the linear partition problem (Skiena, The
Algorithm Design Manual, 10.7). Here a part's cost also counts the bytes that cross its ends, and what it computes again
to fit into a device's memory (`memory.py`); a part that needs more memory than that isn't allowed.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jax_passing.errors import UsageError
from jax_passing.partitioning.memory import Chain, Floats, Held, Limits, held_by_stages

POSITIONS_MAX = 400  # where stages may compute again: each costs many more steps


def stage_s(chain: Chain, limits: Limits, first: int, last: int, stages_after: int = 0) -> float:
    """Returns how long the stage of operations first to last - 1 is busy with a microbatch, if `stages_after` come
    after it."""
    positions = np.array([first, last])
    held = held_by_stages(chain, limits, positions, stages_after)
    return float(_stage_costs(chain, limits, positions, held)[0, 1])


def stage_bytes(chain: Chain, limits: Limits, first: int, last: int, stages_after: int) -> float:
    """Returns the bytes that the stage of operations first to last - 1 holds, if `stages_after` come after it."""
    return float(held_by_stages(chain, limits, np.array([first, last]), stages_after).bytes[0, 1])


def _stage_costs(chain: Chain, limits: Limits, positions: NDArray[np.int64], held: Held) -> Floats:
    """Returns at [a, b] the time of the stage between positions a and b; infinite where b isn't behind a, or it doesn't
    fit into the memory."""
    done = np.concatenate([[0.0], np.cumsum(chain.compute_s)])[positions]
    compute = done[None, :] - done[:, None] + held.again_s
    # Activations cross both ends one way, and gradients the other: each direction of the stage's link carries the bytes
    # that cross both ends.
    crossing = chain.cut_bytes[positions] / limits.link_bytes_per_s
    sending = crossing[None, :] + crossing[:, None]
    cost = np.maximum(compute, sending) if limits.overlap else compute + sending
    is_behind = positions[None, :] > positions[:, None]
    return np.where(is_behind, cost, np.inf)


def best_cuts(chain: Chain, stages: int, limits: Limits | None = None) -> tuple[int, ...]:
    """Returns the positions of the stages - 1 cuts.

    The slowest stage is as fast as it can be; among such cuts, as few bytes as possible cross them. With
    `limits.imbalance` bytes count first: the slowest stage may take so much longer, and is as fast as it can be with
    the fewest bytes. The time that this takes grows with the number of stages, and with the square of the number of
    legal positions, of which at most POSITIONS_MAX are tried with `limits.remat`.

    Raises UsageError if there are too few legal positions, or if no stages fit into the memory.
    """
    limits = limits or Limits()
    n = len(chain.compute_s)
    inner = np.flatnonzero(chain.may_cut[1:n]) + 1
    if len(inner) < stages - 1:
        raise UsageError(
            f"The model can be cut in {len(inner)} positions, too few for {stages} stages: ask for fewer stages."
        )
    if limits.remat and len(inner) > POSITIONS_MAX:
        inner = _fewer(chain, inner)
    positions = np.concatenate([[0], inner, [n]])
    depths = [limits.in_flight(after) for after in reversed(range(stages))]
    if not np.isfinite(limits.memory_bytes):
        depths = [1] * stages  # all stages fit alike
    by_depth = {depth: held_by_stages(chain, limits, positions, depth - 1) for depth in set(depths)}
    costs_of = {depth: _stage_costs(chain, limits, positions, held) for depth, held in by_depth.items()}
    held, costs = [by_depth[depth] for depth in depths], [costs_of[depth] for depth in depths]
    best = _slowest(costs)
    if not np.isfinite(best):
        raise UsageError(_too_large(limits, positions, held))
    crossing = chain.cut_bytes[positions]
    total, indices = _fewest_bytes(crossing, costs, best * (1 + limits.imbalance))
    if limits.imbalance:
        allowed = best * (1 + limits.imbalance)
        slower = [cost[(cost > best) & (cost <= allowed)] for cost in costs_of.values()]
        times = np.unique(np.concatenate([*slower, [best]]))
        low, high = 0, len(times) - 1  # the fewest bytes cross if stages may take times[high]
        while low < high:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if _fewest_bytes(crossing, costs, times[middle])[0] <= total else (middle + 1, high)
            )
        _, indices = _fewest_bytes(crossing, costs, times[high])
    return tuple(int(positions[index]) for index in indices)


def _fewer(chain: Chain, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns, of the positions in each of POSITIONS_MAX equal shares of the work, the one that fewest bytes cross."""
    done = np.concatenate([[0.0], np.cumsum(chain.compute_s)])
    share = np.floor(done[positions] / max(done[-1], np.finfo(float).tiny) * POSITIONS_MAX)
    order = np.lexsort((positions, chain.cut_bytes[positions], share))
    _, firsts = np.unique(share[order], return_index=True)
    return np.sort(positions[order[firsts]])


def _too_large(limits: Limits, positions: NDArray[np.int64], held: Sequence[Held]) -> str:
    is_behind = positions[None, :] > positions[:, None]
    least = _slowest([np.where(is_behind, one.least_bytes, np.inf) for one in held])
    digit = 10.0 ** (math.floor(math.log10(max(least, 1.0))) - 2)
    least = digit * math.ceil(least / digit * (1 - 1e-9))  # rounded up, so that what the message says is enough
    again = "even if stages compute again what they can" if limits.remat else "if stages compute nothing again"
    advice = "" if limits.remat else "remat=True, "
    return (
        f"No way to cut the model into {len(held)} stages fits into {limits.memory_bytes:.3g} bytes for each stage. "
        f"The least possible is {least:.3g} bytes, {again}. Use {advice}more stages, or a smaller microbatch."
    )


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


def _slowest(costs: Sequence[Floats]) -> float:
    """Returns the shortest time that the slowest stage can take. `costs`: by stage, at [a, b], its time if it is
    between these positions."""
    reached = np.full(len(costs[0]), np.inf)  # by position: the slowest stage up to it
    reached[0] = 0.0
    for cost in costs:
        reached = np.min(np.maximum(reached[:, None], cost), axis=0)
    return float(reached[-1])


def _fewest_bytes(crossing: Floats, costs: Sequence[Floats], allowed: float) -> tuple[float, list[int]]:
    """Returns the fewest bytes that cross cuts between stages of which none takes longer than `allowed`, and the
    indices of these cuts."""
    reached = np.full(len(crossing), np.inf)
    reached[0] = 0.0
    before: list[NDArray[np.intp]] = []
    for cost in costs:
        # The sums of the same numbers in another order differ by rounding.
        sums = np.where(cost <= allowed * (1 + 1e-12), reached[:, None] + crossing[None, :], np.inf)
        before.append(np.argmin(sums, axis=0))
        reached = np.min(sums, axis=0)
    cuts = []
    position = len(crossing) - 1
    for stage in reversed(range(1, len(costs))):
        position = int(before[stage][position])
        cuts.append(position)
    return float(reached[-1]), cuts[::-1]

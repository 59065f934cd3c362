"""Times the stages of a plan, and cuts the model anew by these times."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing.errors import UsageError
from jax_passing.host.processes import Fact, differences, refusals_told, told_unless_refused
from jax_passing.partitioning.digest import digest_of
from jax_passing.partitioning.memory import Chain, Limits, checkpoints_of_stages
from jax_passing.partitioning.search import best_cuts
from jax_passing.partitioning.stages import Slicer, Stage

WHAT = "jax_passing.partition(cost='measure')"
REPEATS = 5
MEASUREMENTS_MAX = 4
MEASURING_S = 3600.0  # the other processes wait so long for process 0, which compiles all stages a few times

Measured = tuple[list[float], tuple[int, ...]]
"""By operation of the chain how long it takes, and the cuts."""


def _processes() -> list[int]:
    return list(range(jax.process_count()))


def refusing_together() -> AbstractContextManager[None]:
    """Surrounds all that precedes `measured_once`: if it raises, the other processes, which wait there, learn why."""
    return refusals_told(WHAT, _processes())


def check_arrays(given: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(given):
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            raise UsageError(
                f"{jax.tree_util.keystr(path)} of (params, batch) has parts in other processes. With cost='measure' "
                "one process times the stages by itself, so give it arrays of its own, such as NumPy's."
            )


def facts_of(slicer: Slicer, chain: Chain, limits: Limits, stages: int) -> dict[str, Fact]:
    """Lists what must be the same in all processes, if the times of one of them are to hold for all."""
    model = slicer.model
    loss = digest_of(model.operations, [*model.params, *model.batch], model.outputs, model.constants)
    search = repr((limits, chain.may_cut.tolist(), chain.compute_s.tolist(), chain.stash_bytes.tolist(), chain.weights))
    return {
        "the loss": (loss, f"{len(model.operations)} operations"),
        "stages": (str(stages), str(stages)),
        "the other arguments": (hashlib.sha256(search.encode()).hexdigest(), "some"),
    }


def measured_once(
    facts: Mapping[str, Fact], slicer: Slicer, chain: Chain, cuts: tuple[int, ...], limits: Limits, given: Any
) -> Measured:
    """Returns, in all processes, what process 0 of `jax.distributed` measured: with times of their own they would cut
    the model in different positions.

    Args:
      facts: the numbers on which processes must agree, by name.
      cuts: to begin with.
      given: (params, batch).

    Raises UsageError in all of them if they don't agree, if not all of them call this, if one raises before, in
    `refusing_together`, or if process 0 can't measure.
    """
    processes = _processes()
    if len(processes) == 1:
        return _measured(slicer, chain, cuts, limits, given)
    if differing := differences(told_unless_refused(WHAT, "cut this model", facts, processes)):
        raise UsageError(
            "The processes don't cut the same model, so the times of process 0 can't hold for all of them. They differ "
            f"in {', '.join(differing)}. Call partition with the same loss and arguments in every process."
        )
    own = None
    if jax.process_index() == 0:
        with refusals_told(WHAT, processes, MEASURING_S):
            own = _measured(slicer, chain, cuts, limits, given)
    said = told_unless_refused(WHAT, "measure the stages", own, processes, MEASURING_S)
    times_s, cuts = said[0]
    return times_s, tuple(cuts)


def _measured(slicer: Slicer, chain: Chain, cuts: tuple[int, ...], limits: Limits, given: tuple[Any, Any]) -> Measured:
    """Divides the stages' times among their operations, cuts anew, and repeats this until the cuts stay."""
    leaves, batch = jax.tree.leaves(given[0]), given[1]
    for _ in range(MEASUREMENTS_MAX):
        checkpoints = checkpoints_of_stages(chain, limits, cuts)
        stages = slicer.stages(cuts, checkpoints)
        held = [stage.held(leaves) for stage in stages]
        compute_s = chain.compute_s.copy()
        forward_s = compute_s * chain.forward_share
        times_s = stage_times_s(stages, held, batch)
        for (first, last), own, time_s in zip(slicer.runs(cuts), checkpoints, times_s, strict=True):
            counted_s = compute_s[first:last].sum()
            share = compute_s[first:last] / counted_s if counted_s else np.full(last - first, 1 / (last - first))
            again_s = forward_s[first : max((first, *own))].sum()  # is in the measured time, but not in the operations'
            compute_s[first:last] = share * time_s * (counted_s / (counted_s + again_s) if again_s else 1.0)
        chain = replace(chain, compute_s=compute_s)
        better = best_cuts(chain, len(stages), limits)
        if better == cuts:
            break
        cuts = better
    return chain.compute_s.tolist(), cuts


def stage_times_s(stages: Sequence[Stage], held: Sequence[Any], batch: Any) -> list[float]:
    """Times the forward and backward pass of each stage with one microbatch, on this process's first device: the
    fastest of a few runs."""
    times = []
    carried: list[Any] = []
    for stage, params in zip(stages, held, strict=True):

        def run(params: Any, carried: Any, batch: Any, stage: Stage = stage) -> Any:
            carried_out, outputs, back = stage.vjp(params, carried, batch)
            ones = [jnp.ones_like(one) for one in compress(carried_out, stage.needs_gradient_out)]
            return carried_out, outputs, back(ones)

        compiled = jax.jit(run)
        carried_out, _, _ = jax.block_until_ready(compiled(params, carried, batch))
        fastest = float("inf")
        for _ in range(REPEATS):
            began = time.perf_counter()
            jax.block_until_ready(compiled(params, carried, batch))
            fastest = min(fastest, time.perf_counter() - began)
        times.append(fastest)
        carried = carried_out
    return times

"""How long the stages of a plan really take."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp

from jax_passing.errors import PartitionError
from jax_passing.host.processes import Fact, differences, told
from jax_passing.partitioning.stages import Stage

WHAT = "jax_passing.partition(cost='measure')"
REPEATS = 5
MEASURING_S = 3600.0  # the others wait so long for process 0, which compiles all stages a few times

Measured = tuple[list[float], tuple[int, ...]]
"""By operation of the chain how long it takes, and the cuts."""


def measured_once(facts: Mapping[str, Fact], measure: Callable[[], Measured]) -> Measured:
    """Returns what process 0 of `jax.distributed` measured, in all processes: by their own times they would cut apart.

    `facts`: what they must agree on, by name. Raises PartitionError in all of them if they don't agree, if not all of
    them call this, if one raises before (`refusals_told`), or if process 0 can't measure.
    """
    processes = list(range(jax.process_count()))
    if len(processes) == 1:
        return measure()
    said = told(WHAT, json.dumps([None, facts]), processes, PartitionError)
    everything = {process: json.loads(text) for process, text in said.items()}
    for process, (refusal, _) in sorted(everything.items()):
        if refusal is not None:
            raise PartitionError(f"Process {process} can't cut this model, so no other does: {refusal}")
    if differing := differences({process: facts for process, (_, facts) in everything.items()}):
        raise PartitionError(
            f"The processes don't cut the same model, so the times of process 0 can't be those of all: they differ in "
            f"{', '.join(differing)}. Call partition with the same loss and arguments in every process."
        )
    own = ""
    if jax.process_index() == 0:
        try:
            own = json.dumps(["", measure()])
        except Exception as error:
            told(WHAT, json.dumps([f"{type(error).__name__}: {error}", None]), processes, PartitionError, MEASURING_S)
            raise
    refusal, measured = json.loads(told(WHAT, own, processes, PartitionError, MEASURING_S)[0])
    if refusal:
        raise PartitionError(f"Process 0 couldn't measure the stages for all processes: {refusal}")
    times_s, cuts = measured
    return times_s, tuple(cuts)


@contextlib.contextmanager
def refusals_told() -> Iterator[None]:
    """Goes around all that comes before `measured_once`: if this process raises, the others, which wait, learn why."""
    processes = list(range(jax.process_count()))
    try:
        yield
    except Exception as error:
        if len(processes) > 1:
            with contextlib.suppress(PartitionError):  # if they don't come; the first error is the one to be raised
                told(WHAT, json.dumps([f"{type(error).__name__}: {error}", {}]), processes, PartitionError)
        raise


def stage_times_s(stages: Sequence[Stage], held: Sequence[Any], batch: Any) -> list[float]:
    """Forward and backward pass of each with one microbatch, on this process's first device: the fastest of a few."""
    times = []
    carried: list[Any] = []
    for stage, params in zip(stages, held, strict=True):

        def run(params: Any, carried: Any, batch: Any, stage: Stage = stage) -> Any:
            on, left, back = stage.vjp(params, carried, batch)
            ones = [jnp.ones_like(one) for one in compress(on, stage.needs_gradient_out)]
            return on, left, back(ones)

        compiled = jax.jit(run)
        on, _, _ = jax.block_until_ready(compiled(params, carried, batch))
        fastest = float("inf")
        for _ in range(REPEATS):
            began = time.perf_counter()
            jax.block_until_ready(compiled(params, carried, batch))
            fastest = min(fastest, time.perf_counter() - began)
        times.append(fastest)
        carried = on
    return times

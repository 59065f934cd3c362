"""How long the stages of a plan really take."""

import time
from collections.abc import Sequence
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp

from jax_passing.partitioning.stages import Stage

REPEATS = 5


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

"""How long the stages of a plan really take."""

import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing.partitioning.stages import Stage

REPEATS = 5


def _seed(result: Any) -> Any:
    """A gradient of it; integers have none."""
    if jnp.issubdtype(result.dtype, jnp.inexact):
        return jnp.ones_like(result)
    return np.zeros(result.shape, jax.dtypes.float0)


def stage_times_s(stages: Sequence[Stage], held: Sequence[Any], batch: Any) -> list[float]:
    """Forward and backward pass of each with one microbatch, on this process's first device: the fastest of a few."""
    times = []
    carried: list[Any] = []
    for stage, params in zip(stages, held, strict=True):

        def run(params: Any, carried: Any, batch: Any, stage: Stage = stage) -> Any:
            on, left, back = stage.vjp(params, carried, batch)
            return on, left, back([_seed(one) for one in on])

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

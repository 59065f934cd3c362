"""Type checkers tell users these types of results. mypy reads this file, nobody runs it."""

from typing import assert_type

import jax
import numpy as np

import jax_passing

Params = dict[str, jax.Array]


def loss(params: Params, x: jax.Array, scale: int) -> jax.Array:
    return params["w"] * x * scale


def loss_and_count(params: Params, x: jax.Array) -> tuple[jax.Array, int]:
    return loss(params, x, 1), 1


def calls(params: Params, x: jax.Array) -> None:
    assert_type(jax_passing.psum(params, "d"), Params)
    assert_type(jax_passing.pmean(x, "d"), jax.Array)
    assert_type(jax_passing.pmax(x, "d"), jax.Array)
    assert_type(jax_passing.all_gather(params, "d"), Params)
    assert_type(jax_passing.pvary(params, "d", bucket_bytes=1), Params)
    assert_type(jax_passing.overlap(loss, "d")(params, x, 1), tuple[jax.Array, Params])
    assert_type(jax_passing.overlap(loss_and_count, "d", has_aux=True)(params, x), tuple[tuple[jax.Array, int], Params])
    jax_passing.overlap(loss, "d")(params, x, "1")  # type: ignore[arg-type]
    assert_type(jax_passing.process_sum({"seen": 1}), dict[str, int])
    assert_type(jax_passing.process_sum(x), np.ndarray)

"""Forward passes of a pipeline alone, against the loss of the whole model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_passing import partition, pipeline
from jax_passing.errors import UsageError

ROWS, MICROBATCHES = 3, 4


def loss(params, batch):
    """Its logits are of all rows; the `means` of a scan's turns are on several stages."""
    x = jnp.tanh(batch["x"] @ params["first"])
    x, means = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w) + x, jnp.mean(x)), x, params["stacked"])
    logits = x @ params["last"]
    return jnp.mean(jax.nn.logsumexp(logits, axis=1)), {"logits": logits, "means": means, "most": jnp.argmax(logits, 1)}


def arguments(count):
    random = np.random.default_rng(0)
    shapes = {"first": (5, 8), "last": (8, 7), "stacked": (4, 8, 8)}
    params = {name: random.normal(size=shape).astype(np.float32) / 2 for name, shape in shapes.items()}
    return params, {"x": random.normal(size=(count * ROWS, 5)).astype(np.float32)}


@pytest.mark.parametrize(
    "schedule", ["1f1b", *(pytest.param(each, marks=pytest.mark.slow) for each in ("interleaved", "zb-h1"))]
)
def test_outputs_of_all_microbatches_come_in_the_order_of_the_batch(schedule):
    mesh = jax.make_mesh((2, 2), ("stage", "data"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    count = MICROBATCHES * 2
    params, batch = arguments(count)
    stages = 4 if schedule == "interleaved" else 2
    plan = partition(loss, params, {"x": batch["x"][:ROWS]}, stages=stages, has_aux=True)
    step = pipeline(plan, mesh, microbatches=MICROBATCHES, schedule=schedule)
    value, aux = step.evaluate(step.place(params), batch)
    expected = jax.vmap(lambda x: loss(params, {"x": x}))(batch["x"].reshape(count, ROWS, 5))
    assert jax.tree.structure((value, aux)) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves((value, aux)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    (mean, _), _ = step(params, batch)  # a step is as it was
    np.testing.assert_allclose(jnp.mean(value), mean, rtol=1e-5)


def test_nothing_is_kept_for_a_backward_pass():
    mesh = jax.make_mesh((2, 1), ("stage", "data"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    params, batch = arguments(MICROBATCHES)
    plan = partition(loss, params, {"x": batch["x"][:ROWS]}, stages=2, has_aux=True)
    step = pipeline(plan, mesh, microbatches=MICROBATCHES)
    step.evaluate(params, batch)
    runner = step._runners[0]
    assert "_forward" in vars(runner)
    assert not {"_forward_and_keep", "_to_inputs", "_mean"}.intersection(vars(runner))
    with pytest.raises(UsageError, match="inside of another program"):
        jax.eval_shape(step.evaluate, params, batch)

"""Stages that compute parts of their forward pass again: what they keep, what it costs, and that gradients stay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_passing import partition, pipeline
from jax_passing.errors import UsageError
from jax_passing.partitioning.arrays import bytes_of
from jax_passing.partitioning.cost import cost_of_jaxpr
from jax_passing.pipelining.passes import Passes

pytestmark = pytest.mark.usefixtures("compiled_fast")
ROWS, WIDTH, MICROBATCHES = 64, 8, 4


def layer(x, weights):
    up, down = weights
    return x + jax.nn.softmax(jnp.sin(x @ up)) @ down


def layers(params, batch):
    x = batch["x"] * jax.random.bernoulli(batch["key"], 0.9, batch["x"].shape).astype(jnp.float32)
    for weights in params:
        x = layer(x, weights)
    return jnp.mean(x**2)


def over_stacked(params, batch):
    x, means = jax.lax.scan(lambda x, weights: (layer(x, weights), jnp.mean(x)), batch["x"], params)
    return jnp.mean(x**2), {"means": means}


def arguments(count=1, stacked=False):
    random = np.random.default_rng(4)

    def normal(*shape):
        return (random.normal(size=shape) / 3).astype(np.float32)

    params = [(normal(WIDTH, 4 * WIDTH), normal(4 * WIDTH, WIDTH)) for _ in range(6)]
    if stacked:
        params = tuple(np.stack(leaves) for leaves in zip(*params, strict=True))
    batch = {"x": normal(count, ROWS, WIDTH), "key": jax.random.split(jax.random.key(0), count)}
    return params, batch


def microbatch(batch):
    return jax.tree.map(lambda leaf: leaf[0], batch)


@pytest.mark.parametrize(
    ("stages", "loss"), [pytest.param(2, layers, marks=pytest.mark.slow), (3, layers), (2, over_stacked)]
)
def test_stages_fit_and_keep_what_the_plan_says(stages, loss):
    has_aux = loss is over_stacked
    params, batch = arguments(MICROBATCHES, stacked=has_aux)
    one, options = microbatch(batch), {"stages": stages, "has_aux": has_aux, "microbatches": MICROBATCHES}
    free = partition(loss, params, one, **options)
    limit = 0.6 * max(facts.memory_bytes for facts in free.facts)
    with pytest.raises(UsageError, match="remat=True"):
        partition(loss, params, one, memory_bytes=limit, **options)
    plan = partition(loss, params, one, memory_bytes=limit, remat=True, **options)
    assert "of its forward pass again" in str(plan)
    for number, (stage, facts) in enumerate(zip(plan.stages, plan.facts, strict=True)):
        assert facts.memory_bytes <= limit
        held = list(stage.held(plan.params_shapes).values())
        passes = Passes(stage, held, plan.batch_shapes)
        kept = sum(bytes_of(passes.backward_shapes[value]) for value in (*passes.kept, *passes.carried))
        weights = 4 * sum(map(bytes_of, held))  # with gradients and two copies
        really = weights + min(MICROBATCHES, stages - number) * kept
        given = [passes.backward_shapes[value] for value in passes.whole.inputs]
        compiled = jax.jit(lambda arrays, passes=passes: passes.whole(arrays)).lower(given).compile()
        temporary = compiled.memory_analysis().temp_size_in_bytes
        # XLA copies the rows of scans, and here it fuses nothing.
        assert really + (0 if loss is over_stacked else temporary) <= facts.memory_bytes
        # The flops are those of the passes. JAX doesn't compute again what no derivative needs, such as the last sum.
        flops = cost_of_jaxpr(jax.make_jaxpr(lambda arrays, passes=passes: passes.whole(arrays))(given)).flops
        forward = facts.flops * facts.forward_s / facts.compute_s
        assert 0.8 * facts.flops < flops + forward < 1.02 * facts.flops
    right = jax.jit(jax.value_and_grad(loss, has_aux=has_aux))(params, one)
    found = jax.jit(plan.value_and_grad)(params, one)
    assert jax.tree.structure(right) == jax.tree.structure(found)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_a_pipeline_whose_stages_compute_again_has_the_same_gradients():
    params, batch = arguments(MICROBATCHES)
    one = microbatch(batch)
    free = partition(layers, params, one, stages=2, microbatches=MICROBATCHES)
    limit = 0.6 * max(facts.memory_bytes for facts in free.facts)
    plan = partition(layers, params, one, stages=2, microbatches=MICROBATCHES, memory_bytes=limit, remat=True)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]).reshape(2, 1), ("stage", "data"))
    value, gradients = pipeline(plan, mesh, microbatches=MICROBATCHES, schedule="zb-h1")(params, batch)
    each = jax.jit(jax.vmap(jax.value_and_grad(layers), (None, 0)))(params, batch)
    for ours, theirs in zip(jax.tree.leaves((value, gradients)), jax.tree.leaves(each), strict=True):
        np.testing.assert_allclose(ours, theirs.mean(axis=0), rtol=1e-5, atol=1e-7)

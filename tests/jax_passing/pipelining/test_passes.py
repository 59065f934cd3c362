"""The forward and backward passes of stages: what they keep, and how the backward pass is divided."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jax_passing import partition, pipeline
from jax_passing.pipelining.passes import Passes


def test_neither_parameters_nor_the_batch_are_kept_between_the_passes():
    params, batch = jnp.ones((8, 8)), jnp.ones((4, 8))
    plan = partition(lambda params, batch: jnp.sum(jnp.tanh(batch @ params) @ params.T), params, batch, stages=1)
    passes = Passes(plan.stages[0], [params], [batch])
    on, left, kept = passes.forward([params], [], [batch])
    assert (len(on), len(left)) == (0, 1)
    assert sorted(array.shape for array in kept) == [(4, 8)] * len(kept)
    assert len(kept) <= 2  # what tanh returned, and what its derivative is made of


def test_the_second_part_has_the_products_for_weights():
    """Each product has two gradients: that of its input, for which the stage before waits, and that of its weights."""
    params, batch = [jnp.ones((8, 8))] * 6, jnp.ones((4, 8))

    def deep(params, batch):
        for weight in params:
            batch = jnp.tanh(batch @ weight)
        return jnp.sum(batch)

    plan = partition(deep, params, batch, stages=3)
    passes = Passes(plan.stages[1], [params[0]] * 2, [batch])
    assert len(plan.stages[1].pieces) == 2

    def products(part):
        return sum(operation.eqn.primitive.name == "dot_general" for operation in part.operations)

    assert (products(passes.whole), products(passes.to_inputs), products(passes.to_weights)) == (4, 2, 2)


def test_a_sharded_stage_computes_its_part_of_each_layer():
    weights, batch = [np.ones((64, 64), np.float32)] * 2, np.ones((4, 64), np.float32)
    plan = partition(
        lambda weights, batch: jnp.sum(jnp.tanh(batch @ weights[0]) @ weights[1]), weights, batch, stages=1
    )

    def flops(specs):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]).reshape(1, 1, 2), ("stage", "data", "model"))
        (runner,) = pipeline(plan, mesh, microbatches=1, param_specs=specs)._runners
        held = [jax.device_put(array, sharding) for array, sharding in zip(weights, runner.held, strict=True)]
        given = jax.device_put(batch[np.newaxis, np.newaxis], runner.differing)
        return runner._forward.lower(held, [], [given], np.int32(0)).compile().cost_analysis()["flops"]

    assert flops([P(None, "model"), P("model")]) < 0.6 * flops(None)

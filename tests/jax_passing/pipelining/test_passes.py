"""The forward and backward passes of stages: what they keep, and how the backward pass is divided."""

import jax.numpy as jnp

from jax_passing import partition
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

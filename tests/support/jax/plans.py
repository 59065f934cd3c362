"""Shared by tests of plans: a small loss, and a comparison with `jax.value_and_grad`."""

import jax
import jax.numpy as jnp
import numpy as np


def check_plan(plan, loss, params, batch, has_aux=False):
    """Checks that loss, aux and gradients of the stages are those of the whole loss."""
    ours = jax.jit(plan.value_and_grad)(params, batch)
    whole = jax.jit(jax.value_and_grad(loss, has_aux=has_aux))(params, batch)
    assert jax.tree.structure(ours) == jax.tree.structure(whole)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(whole[1]))
    for one, other in zip(jax.tree.leaves(ours[0]), jax.tree.leaves(whole[0]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    for one, other in zip(jax.tree.leaves(ours[1]), jax.tree.leaves(whole[1]), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * largest)


def plain(params, batch):
    x = batch
    for weight in params:
        x = jnp.tanh(x @ weight)
    return jnp.sum(x)


PLAIN = [jnp.eye(4)] * 5, jnp.ones((2, 4))

"""Where a pipeline's parameters lie: they are made, or restored, on their stages' devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec as P

from jax_passing import partition, pipeline
from jax_passing.errors import UsageError

TOKENS = jnp.zeros((2, 5), int)


class Model(nn.Module):
    """Has a tied embedding, which the first and the last stage use."""

    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(12, 8)
        x = embed(tokens)
        for number in range(4):
            x = x + nn.Dense(8, name=f"dense_{number}")(jnp.tanh(x))
        return embed.attend(x)


def init(key):
    return {"model": Model().init(key, TOKENS)["params"], "unused": jnp.ones((3, 2))}


def loss(params, tokens):
    return jnp.mean(jax.nn.logsumexp(Model().apply({"params": params["model"]}, tokens), -1))


@functools.cache
def step():
    shapes = jax.eval_shape(init, jax.random.key(0))
    plan = partition(loss, shapes, TOKENS, stages=3, imbalance=0)  # so that each stage has parameters
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:6]).reshape(3, 1, 2), ("stage", "data", "model"))
    kernels = {f"dense_{number}": {"kernel": P(None, "model"), "bias": P()} for number in range(4)}
    specs = {"model": {**kernels, "Embed_0": P("model")}, "unused": P()}
    return pipeline(plan, mesh, microbatches=2, param_specs=specs)


def same(params, others):
    assert jax.tree.structure(params) == jax.tree.structure(others)
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True):
        assert one.sharding == other.sharding
        np.testing.assert_array_equal(one, other)


def test_parameters_are_made_where_they_belong():
    made = step().init(init, jax.random.key(7))
    same(made, step().place(jax.jit(init)(jax.random.key(7))))
    homes = {tuple(sorted(device.id for device in leaf.devices())) for leaf in jax.tree.leaves(made)}
    assert len(homes) == 3


def test_an_init_that_isnt_the_plans():
    with pytest.raises(UsageError, match=r"parameters differ .*unused.*float32\[4, 2\] instead of float32\[3, 2\]"):
        step().init(lambda key: {**init(key), "unused": jnp.ones((4, 2))}, jax.random.key(0))
    with pytest.raises(UsageError, match="call it outside of jax.jit"):
        jax.jit(functools.partial(step().init, init))(jax.random.key(0))


@pytest.mark.slow
def test_orbax_restores_parameters_where_they_belong(tmp_path):
    import orbax.checkpoint as ocp

    whole = jax.jit(init)(jax.random.key(7))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "params", whole)
        checkpointer.wait_until_finished()
        same(checkpointer.restore(tmp_path / "params", step().abstract_params), step().place(whole))

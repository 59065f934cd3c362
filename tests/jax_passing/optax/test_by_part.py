"""Operations that are carried out on parts, beside the same ones on whole arrays."""

import jax
import jax.numpy as jnp
import optax
import pytest

from support.jax.optimizing import difference, largest
from support.jax.sharding import Sharded, exact_gradients, exact_mean

pytestmark = pytest.mark.usefixtures("session")

DEVICES = 4
PARAMS = {"even": jnp.ones((4, 8)), "uneven": jnp.linspace(-2, 3, 7), "one": jnp.ones(1)}

# Numbers that the padding of the last parts would change: it is 0, and no gradient of an uneven leaf is.
NUMBERS = {
    "sum": lambda x: jnp.sum(jnp.exp(x)),
    "mean": lambda x: jnp.mean(jnp.cos(x)),
    "max": lambda x: jnp.max(-jnp.abs(x)),
    "min": lambda x: jnp.min(jnp.abs(x)),
    "max of integers": lambda x: jnp.max(-(jnp.abs(x) * 64).astype(jnp.int32)).astype(jnp.float32),
    "all": lambda x: jnp.all(x != 0).astype(jnp.float32),
    "any": lambda x: jnp.any(x == 0).astype(jnp.float32),
    "vdot": lambda x: jnp.vdot(jnp.cos(x), jnp.exp(x)),
    "norm": lambda x: jnp.linalg.norm(jnp.cos(x)),
    "with its dimensions": lambda x: jnp.sum(jnp.exp(x), keepdims=True),
    "of another shape": lambda x: jnp.sum(jnp.exp(x).reshape(1, -1)[None]),
}


def compare(function):
    inner = optax.stateless(function)
    found = Sharded(inner, DEVICES, PARAMS).update(exact_gradients(0, range(DEVICES), PARAMS), PARAMS)
    expected, _ = jax.jit(inner.update)(exact_mean(0, DEVICES, PARAMS), optax.EmptyState(), PARAMS)
    assert difference(found, expected) <= 2.0**-20 * max(1, largest(expected))


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_made_of_all_elements(name):
    compare(lambda grads, params: jax.tree.map(lambda g: g + NUMBERS[name](g), grads))


def test_devices_take_the_same_branch():
    def function(grads, params):
        total = sum(jnp.sum(g) for g in jax.tree.leaves(grads))
        return jax.lax.cond(
            total > 1e6,
            lambda: grads,
            lambda: jax.tree.map(lambda g, p: p * jnp.max(g) - jnp.full_like(g, 2), grads, params),
        )

    compare(function)


def test_dimensions_of_one_element_are_stretched():
    row = jnp.arange(8, dtype=jnp.float32)[None]
    compare(lambda grads, params: grads | {"even": jax.lax.add(grads["even"], row) * grads["even"]})


def test_constants_and_random_numbers_are_those_of_whole_arrays():
    table = {name: jnp.arange(p.size, dtype=jnp.float32).reshape(p.shape) for name, p in PARAMS.items()}

    def function(grads, params):
        noise = {name: jax.random.normal(jax.random.key(3), p.shape) for name, p in params.items()}
        return {name: grads[name] * table[name] + noise[name].reshape(-1).reshape(grads[name].shape) for name in grads}

    compare(function)

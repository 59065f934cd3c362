"""Operations that are carried out on parts, beside the same ones on whole arrays."""

import jax
import jax.numpy as jnp
import numpy as np
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


def compare(function, params=PARAMS):
    inner = optax.stateless(function)
    found = Sharded(inner, DEVICES, params).update(exact_gradients(0, range(DEVICES), params), params)
    expected, _ = jax.jit(inner.update)(exact_mean(0, DEVICES, params), optax.EmptyState(), params)
    assert difference(found, expected) <= 2.0**-20 * max(1, largest(expected))


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_made_of_all_elements(name):
    compare(lambda grads, params: jax.tree.map(lambda g: g + NUMBERS[name](g), grads))


def test_sums_are_used_again_after_they_were_added_to_others():
    def function(grads, params):
        first, second = jnp.sum(jnp.exp(grads["even"])), jnp.sum(jnp.exp(grads["uneven"]))
        total = first + second
        return jax.tree.map(lambda g: g * first / total + second, grads)

    compare(function)


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


@pytest.mark.parametrize("where", ["outside", "jit", "cond"])
def test_constants_of_numpy_are_stretched_as_well(where):
    """Tracing leaves them as they are, at the top and in nested calls."""
    shapes = [(1,), (2, 1), (5, 1), (1, 6), (2, 1, 1), (2, 5, 1), (1, 1, 1), (2, 5, 6), ()]
    names = dict(zip(map(str, shapes), shapes, strict=True))
    factors = {name: np.linspace(0.1, 1, int(np.prod(s)), dtype=np.float32).reshape(s) for name, s in names.items()}
    params = {name: jnp.ones((s[0], 6) if len(s) == 2 else (2, 5, 6)) for name, s in names.items()}

    def scaled(grads):
        return {
            name: jnp.clip(g * factors[name], -np.abs(factors[name]), np.full((1,) * len(names[name]), 0.4, np.float32))
            for name, g in grads.items()
        }

    ways = {
        "outside": scaled,
        "jit": jax.jit(scaled),
        "cond": lambda grads: jax.lax.cond(jnp.sum(grads["()"]) > 1e6, lambda: grads, lambda: scaled(grads)),
    }
    with jax.numpy_rank_promotion("allow"):
        compare(lambda grads, params: ways[where](grads), params)


def test_constants_and_random_numbers_are_those_of_whole_arrays():
    table = {name: jnp.arange(p.size, dtype=jnp.float32).reshape(p.shape) for name, p in PARAMS.items()}

    def function(grads, params):
        noise = {name: jax.random.normal(jax.random.key(3), p.shape) for name, p in params.items()}
        return {name: grads[name] * table[name] + noise[name].reshape(-1).reshape(grads[name].shape) for name in grads}

    compare(function)

"""`pmax` and `pmin` beside those of JAX, on one host whose axes are declared."""

# ruff: noqa: B023 (each function is called in the loop that makes it)

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.errors import (
    UsageError,
)
from support.jax.collective_cases import numbers, on_mesh, same, same_bits

pytestmark = pytest.mark.usefixtures("session")


def extremes(x):
    return jax_passing.pmax(x, "d"), jax_passing.pmin(x, "d")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_extremes_of_nan_infinities_and_zeros(dtype, check_vma):
    with jax.enable_x64(dtype == "float64"):
        columns = [[1, np.nan, -2, 3], [-np.inf, 5, np.inf, 0], [-np.inf] * 4, [0.0, -0.0, -0.0, -0.0], [-0.0] * 4]
        x = jnp.asarray(np.array(columns).T, dtype)
        largest, smallest = (each[0] for each in on_mesh(extremes, check_vma=check_vma, out_specs=P())(x))
        np.testing.assert_array_equal(largest.astype(np.float32), [np.nan, np.inf, -np.inf, 0, 0])
        np.testing.assert_array_equal(smallest.astype(np.float32), [np.nan, -np.inf, -np.inf, 0, 0])
        assert [bool(sign) for sign in jnp.signbit(largest[3:])] == [False, True]
        assert [bool(sign) for sign in jnp.signbit(smallest[3:])] == [True, True]


def test_extremes_of_trees_scalars_and_constants(check_vma):
    tree = {"a": numbers("float32", (4, 3)), "b": [numbers("uint8", (4, 2, 5))]}

    def f(of, x):
        x = jax.tree.map(lambda leaf: leaf[0], x)
        return of((x, 3, np.arange(2.0, dtype=np.float32)), "d")

    same(
        functools.partial(f, jax_passing.pmax),
        functools.partial(f, jax.lax.pmax),
        tree,
        check_vma=check_vma,
        out_specs=P(),
    )
    assert on_mesh(lambda x: jax_passing.pmax((), "d"), check_vma=check_vma)(tree) == ()
    # Not beside jax.lax: jaxlib 0.11.2 dies of the maximum of an empty array.
    empty = on_mesh(lambda x: jax_passing.pmax(x[0], "d"), check_vma=check_vma, out_specs=P())(
        jnp.ones((4, 0), jnp.int32)
    )
    assert (empty.shape, empty.dtype) == ((0,), jnp.int32)


@pytest.mark.parametrize("name", ["pmax", "pmin"])
def test_extremes_over_an_axis_of_vmap(name):
    x = numbers("float32", (8, 6, 3))
    for axes in ("v", ("v", "d"), ("d", "v")):
        results = [
            on_mesh(jax.vmap(lambda x, of=of: of(x, axes), axis_name="v", in_axes=1, out_axes=1), out_specs=P("d"))(x)
            for of in (getattr(jax_passing, name), getattr(jax.lax, name))
        ]
        np.testing.assert_array_equal(*results)
    results = [
        jax.vmap(lambda x, of=of: of(x, "v"), axis_name="v")(x)
        for of in (getattr(jax_passing, name), getattr(jax.lax, name))
    ]
    same_bits(*results)


def test_extremes_have_no_gradient(check_vma):
    x = numbers("float32", (4,))
    f = on_mesh(lambda x: x * jax_passing.pmax(x, "d"), check_vma=check_vma)
    with pytest.raises(UsageError, match="pmax at test_extremes.py.*stop_gradient"):
        jax.grad(lambda x: f(x).sum())(x)
    g = on_mesh(lambda x: x * jax_passing.pmin(jax.lax.stop_gradient(x), "d"), check_vma=check_vma)
    np.testing.assert_array_equal(jax.grad(lambda x: g(x).sum())(x), jnp.full(4, x.min()))


def test_extremes_of_other_dtypes():
    with pytest.raises(UsageError, match="complex64"):
        on_mesh(lambda x: jax_passing.pmax(x, "d"))(jnp.ones(4, np.complex64))

"""Every transform of every collective in a session of one host, and every dtype: what `jax.lax` and numpy give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from support.jax.as_lax import PSUMS, X, mesh_of, same, sharded
from support.jax.collective_cases import (
    BY_CALLS_OF_PYTHON,
    OURS,
    TRANSFORMS,
    body,
    by_lax,
    check,
    check_every_dtype,
    every_dtype,
    loss,
    over_rows,
    rows_of,
    rows_of_every_dtype,
)

pytestmark = pytest.mark.usefixtures("session")

# A transform more is a row of support/jax/collective_cases.py, by which calls of Python are tested, too.
ROWS = rows_of(4)
OUTSIDE = {
    "grad": lambda f: jax.grad(loss(f))(ROWS),
    "jvp": lambda f: jax.jvp(f, (ROWS,), (np.cos(ROWS),)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(loss(f)), in_axes=1)(np.stack([ROWS, np.sin(ROWS)], 1)),
}


# Each compiles a program with all functions: the default tier takes every other one, of those that it doesn't try with
# calls of Python.
@pytest.mark.usefixtures("compiled_fast")
@pytest.mark.parametrize(
    ("transform", "check_vma"),
    [
        pytest.param(transform, check_vma, marks=[pytest.mark.slow] if slow else [])
        for number, transform in enumerate(TRANSFORMS)
        for check_vma in (False, True)
        for slow in [(number + check_vma) % 2 or transform in BY_CALLS_OF_PYTHON]
    ],
)
def test_inside_of_shard_map(transform, check_vma):
    check(over_rows(body(OURS, transform), check_vma=check_vma)(ROWS), by_lax(transform)(ROWS))


@pytest.mark.usefixtures("compiled_fast")
@pytest.mark.parametrize("transform", OUTSIDE)
def test_outside_of_shard_map(transform):
    of = OUTSIDE[transform]
    check(of(over_rows(body(OURS, "none"), check_vma=transform == "grad")), of(by_lax("none")))


@pytest.mark.usefixtures("compiled_fast")
def test_every_dtype(check_vma):
    with jax.enable_x64(True):
        rows = rows_of_every_dtype(4)
        check_every_dtype(over_rows(every_dtype, check_vma=check_vma)(rows), rows)


# The rest tests sums alone.


def test_jaxpr_shows_the_primitive(check_vma):
    jaxpr = str(
        jax.make_jaxpr(sharded(lambda x: jax_passing.psum(x, "d"), mesh_of(8), check_vma=check_vma, out_specs=P()))(X)
    )
    assert ("passing_psum_invariant[" if check_vma else "passing_psum[") in jaxpr
    assert jaxpr.count("passing_psum") == 1


def test_derivative_of_some_leaves_only(check_vma):
    def make(psum):
        def f(x, y):
            a, b, c = psum((x, y, (x > 1).astype(jnp.int32)), "d")
            return a * b * c.astype(jnp.float32)

        mapped = sharded(f, mesh_of(8), in_specs=(P("d"), P("d")), check_vma=check_vma, out_specs=P())
        return jax.grad(lambda x, y: mapped(x, y).sum(), argnums=0)

    def make_single(psum):
        return sharded(lambda x: jax.grad(lambda x: psum((x, x * 2), "d")[1].sum())(x), mesh_of(8), check_vma=check_vma)

    same(make, X, X + 1)
    same(make_single, X)


def test_vmap_axis_name():
    def make(psum):
        return lambda x: (
            jax.vmap(lambda row: row / psum(row, "batch"), axis_name="batch")(x + 1),
            jax.vmap(lambda row: psum(row, "batch"), axis_name="batch", out_axes=None)(x),
            jax.vmap(lambda row: psum(jnp.float32(2) * jnp.ones(3), "batch"), axis_name="batch")(x),
            jax.vmap(jax.vmap(lambda v: psum(v, ("i", "j")), axis_name="j"), axis_name="i")(x),
            jax.vmap(jax.vmap(lambda v: psum(v, "i"), axis_name="j"), axis_name="i")(x),
        )

    same(make, X)
    for psum in PSUMS:  # and without jit
        np.testing.assert_array_equal(jax.vmap(lambda row, psum=psum: psum(row, "i"), axis_name="i")(X)[0], X.sum(0))


def test_vmap_axis_together_with_a_mesh_axis():
    def make(psum):
        def inside(x):
            return jax.vmap(lambda row: psum(row, ("d", "batch")), axis_name="batch", in_axes=1)(x)

        return sharded(inside, mesh_of(8), check_vma=False)

    same(make, X)


def test_grad_through_a_vmap_axis():
    def make(psum):
        return jax.grad(lambda x: (jax.vmap(lambda r: psum(r**2, "b") * r, axis_name="b")(x) ** 2).sum())

    same(make, X / 7)


def test_no_sum_is_hoisted_out_of_its_loop():
    """If XLA hoisted it, that might depend on the rest of the program, in which hosts may differ."""

    def f(x):
        y = jax.lax.fori_loop(0, 3, lambda _, y: y + jax_passing.psum(x, "d"), x)
        return jax_passing.psum(y, "d")

    text = jax.jit(sharded(f, mesh_of(8), out_specs=P(), check_vma=False)).lower(X).compile().as_text()
    entry = text[text.index("ENTRY") :]
    assert text.count('custom_call_target="passing_psum"') == 2
    assert entry.count('custom_call_target="passing_psum"') == 1


def test_many_sums_in_a_scan():
    def inside(x):
        def body(carry, i):
            sums = [jax_passing.psum(x + i * k, "d") for k in range(20)]
            return carry, jnp.stack(sums)

        return jax.lax.scan(body, 0.0, jnp.arange(30.0))[1]

    totals = jax.jit(sharded(inside, mesh_of(4), out_specs=P(), check_vma=False))(X[:4])
    for i in range(30):
        for k in range(20):
            np.testing.assert_array_equal(totals[i, k], (X[:4] + i * k).sum(0, keepdims=True))

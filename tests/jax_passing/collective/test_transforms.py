"""Every transform, with `jax_passing.psum` and with `jax.lax.psum`: same values, shapes, types and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from support.jax.as_lax import PSUMS, X, mesh_of, same, sharded

pytestmark = pytest.mark.usefixtures("session")


def grad_like(psum, x):
    """A sum in the middle of a computation, so that both directions matter."""
    total = psum(jnp.sin(x), "d")
    return jnp.tanh(total * 0.1) * x


def test_jaxpr_shows_the_primitive(check_vma):
    jaxpr = str(
        jax.make_jaxpr(sharded(lambda x: jax_passing.psum(x, "d"), mesh_of(8), check_vma=check_vma, out_specs=P()))(X)
    )
    assert ("passing_psum_invariant[" if check_vma else "passing_psum[") in jaxpr
    assert jaxpr.count("passing_psum") == 1


def test_without_jit(check_vma):
    for psum in PSUMS:
        result = sharded(lambda x, psum=psum: psum(x, "d"), mesh_of(8), out_specs=P(), check_vma=check_vma)(X)
        np.testing.assert_array_equal(result, X.sum(0, keepdims=True))


def test_grad(check_vma):
    def make(psum):
        f = sharded(lambda x: grad_like(psum, x), mesh_of(8), check_vma=check_vma)
        return jax.grad(lambda x: (f(x) ** 2).sum())

    same(make, X)


def test_grad_inside_shard_map(check_vma):
    def make(psum):
        def inside(x):
            return jax.grad(lambda x: (psum(x**2, "d") ** 2).sum())(x)

        return sharded(inside, mesh_of(8), check_vma=check_vma)

    same(make, X)


def test_value_and_grad_of_a_data_parallel_step(check_vma):
    def make(psum):
        def step(w, x):
            if check_vma:
                w = jax.lax.pcast(w, ("d",), to="varying")
            loss, grads = jax.value_and_grad(lambda w: ((x @ w - 1) ** 2).mean())(w)
            return psum(loss, "d"), psum(grads, "d")

        return sharded(step, mesh_of(8), in_specs=(P(), P("d")), out_specs=(P(), P()), check_vma=check_vma)

    same(make, np.ones(6, np.float32), X)


def test_jvp_and_linearize(check_vma):
    def make(psum):
        f = sharded(lambda x: grad_like(psum, x), mesh_of(8), check_vma=check_vma)

        def both(x, t):
            value, linear = jax.linearize(f, x)
            return jax.jvp(f, (x,), (t,)), value, linear(t)

        return both

    same(make, X, np.ones_like(X))


def test_second_derivative(check_vma):
    def make(psum):
        f = sharded(lambda x: grad_like(psum, x), mesh_of(4), check_vma=check_vma)
        return jax.jacfwd(jax.grad(lambda x: f(x).sum()))

    same(make, X[:4, :2])


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


@pytest.mark.parametrize("in_axis", [0, 1])
def test_vmap_inside(check_vma, in_axis):
    def make(psum):
        def inside(x):
            return jax.vmap(lambda row: psum(row, "d"), in_axes=in_axis, out_axes=in_axis)(x)

        return sharded(inside, mesh_of(8), check_vma=check_vma, out_specs=P())

    same(make, X)


def test_vmap_outside(check_vma):
    def make(psum):
        f = sharded(lambda x: psum(x, "d"), mesh_of(8), check_vma=check_vma, out_specs=P())
        return jax.vmap(f, in_axes=1, out_axes=0)

    same(make, X)


def test_vmap_of_grad_outside(check_vma):
    def make(psum):
        f = sharded(lambda x: grad_like(psum, x), mesh_of(8), check_vma=check_vma)
        return jax.vmap(jax.grad(lambda x: (f(x) ** 2).sum()), in_axes=1)

    same(make, X)


def test_vmap_of_unbatched_operands():
    def make(psum):
        def inside(x):
            return jax.vmap(lambda i: psum(x, "d") + i)(jnp.arange(3.0))

        return sharded(inside, mesh_of(8), check_vma=False, out_specs=P())

    same(make, X)


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


def test_scan(check_vma):
    def make(psum):
        def inside(x):
            def body(carry, row):
                total = psum(row * carry.sum(), "d")
                return carry + row * total, total

            carry, totals = jax.lax.scan(body, x * 0.01, jnp.stack([x, x + 1, x + 2]))
            return carry, totals

        return sharded(inside, mesh_of(8), check_vma=check_vma, out_specs=(P("d"), P()))

    same(make, X / 7)


def test_grad_of_scan(check_vma):
    def make(psum):
        def inside(x):
            def body(carry, _):
                return jnp.sin(psum(carry, "d") * 0.01) * x, ()

            return jax.lax.scan(body, x, None, length=5)[0]

        f = sharded(inside, mesh_of(8), check_vma=check_vma)
        return jax.grad(lambda x: f(x).sum())

    same(make, X / 7)


def test_fori_loop_and_while_loop(check_vma):
    def make(psum):
        def inside(x, n):
            x = jax.lax.fori_loop(0, n[0], lambda i, x: x + psum(x, "d") * 0.1, x)
            return jax.lax.while_loop(lambda x: psum(x, "d").sum() < 1e4, lambda x: x * 2 + psum(x, "d") * 0.01, x)

        specs = (P("d"), P())
        return sharded(inside, mesh_of(8), in_specs=specs, check_vma=check_vma)

    same(make, X / 7 + 1, np.array([4], np.int32))


def test_cond(check_vma):
    def make(psum):
        def inside(x, yes):
            return jax.lax.cond(yes[0], lambda x: psum(x, "d"), lambda x: psum(2 * x, "d") + 1, x)

        return sharded(inside, mesh_of(8), in_specs=(P("d"), P()), check_vma=check_vma, out_specs=P())

    same(make, X, np.array([True]))
    same(make, X, np.array([False]))


def test_remat(check_vma):
    def make(psum):
        f = sharded(jax.checkpoint(lambda x: grad_like(psum, x)), mesh_of(8), check_vma=check_vma)
        return jax.grad(lambda x: (f(x) ** 2).sum())

    same(make, X)


def test_custom_vjp(check_vma):
    def make(psum):
        @jax.custom_vjp
        def total(x):
            return psum(x, "d")

        total.defvjp(lambda x: (total(x), x), lambda x, ct: (x + jnp.zeros_like(x) * ct,))
        f = sharded(total, mesh_of(8), check_vma=check_vma, out_specs=P())
        return jax.grad(lambda x: f(x).sum())

    def make_backward(psum):
        @jax.custom_vjp
        def identity(x):
            return x

        identity.defvjp(lambda x: (x, None), lambda _, ct: (psum(ct, "d") * jnp.ones_like(ct),))
        f = sharded(lambda x: identity(x) ** 2, mesh_of(8), check_vma=False)
        return jax.grad(lambda x: f(x).sum())

    same(make, X)
    same(make_backward, X)


def test_no_sum_is_hoisted_out_of_its_loop():
    """If XLA hoisted it, that might depend on the rest of the program, in which hosts may differ."""

    def f(x):
        y = jax.lax.fori_loop(0, 3, lambda _, y: y + jax_passing.psum(x, "d"), x)
        return jax_passing.psum(y, "d")

    text = jax.jit(sharded(f, mesh_of(8), out_specs=P(), check_vma=False)).lower(X).compile().as_text()
    entry = text[text.index("ENTRY") :]
    assert text.count('custom_call_target="passing_psum"') == 2
    assert entry.count('custom_call_target="passing_psum"') == 1


def test_inner_jit_called_many_times():
    @jax.jit
    def inner(x):
        return jax_passing.psum(x, "d") * 0.5 + jax_passing.psum(x * x, "d")

    def inside(x):
        return [inner(x + i) for i in range(50)]

    f = jax.jit(sharded(inside, mesh_of(4), out_specs=P(), check_vma=False))
    for step in range(3):
        for i, total in enumerate(f(X[:4] + step)):
            y = X[:4] + step + i
            np.testing.assert_array_equal(total, (y * 0.5).sum(0, keepdims=True) + (y * y).sum(0, keepdims=True))


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

"""Sums that are started in one place and finished in another give what `psum` gives, in a world of one host."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing import _native
from support.jax.as_lax import X, apart, mesh_of, sharded
from support.jax.on_mesh import bits, values

TOTAL = X[:4] + X[4:]  # over two devices

pytestmark = pytest.mark.usefixtures("session", "compiled_fast")


SUMS = (apart, lambda tree, axis="d": jax_passing.psum(tree, axis))


def same_bits(make, *args):
    """`make(psum)` is a function of args; runs it with a sum in two parts, and with `psum`, under jit."""
    ours, theirs = (jax.jit(make(psum))(*args) for psum in SUMS)
    assert bits(ours) == bits(theirs)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    assert not _native.unfinished_handles()


# Values.


def test_numbers_and_trees_without_elements(check_vma):
    def body(x):
        return apart({"count": 1, "half": 0.5, "x": x}), apart({}), apart([x[:0]])

    found, empty, nothing = jax.jit(sharded(body, mesh_of(2), out_specs=P(), check_vma=check_vma))(X)
    assert (found["count"], found["half"]) == (2, 1)
    assert empty == {}
    assert nothing[0].shape == (0, 6)


@pytest.mark.parametrize(
    ("axis", "declared"), [("d", "d"), ("m", "d"), (("m", "d"), "m"), (("m", "d"), "other"), ((), "d")]
)
def test_axes_of_a_mesh_with_two_across_programs(session, axis, declared, check_vma):
    """Sums over one of them stay apart in groups; those over an axis that isn't declared stay inside the host."""
    session.shutdown()
    x = values(np.dtype(np.float32), (4, 6, 3))
    mesh, spec = mesh_of(2, 4), P("d", "m")
    with jax_passing.init(world_size=1, rank=0, axis_name=declared):
        start = jax.jit(sharded(lambda x: jax_passing.psum_start({"x": x}, axis), mesh, spec, P(), check_vma=check_vma))
        done = jax.jit(sharded(jax_passing.psum_done, mesh, P(), _left(spec, axis), check_vma=check_vma))
        psum = jax.jit(
            sharded(lambda x: jax_passing.psum({"x": x}, axis), mesh, spec, _left(spec, axis), check_vma=check_vma)
        )
        x = np.concatenate([x, x[:, :2]], 1)
        handle = start(x)
        assert all(token.sharding.is_fully_replicated for token in jax.tree.leaves(handle))
        assert bits(done(handle)) == bits(psum(x))


def _left(spec, axis):
    return P(*(None if name == axis or name in axis else name for name in spec))


# Transforms.


def test_grad_of_some_leaves(check_vma):
    def make(psum):
        def loss(x, y):
            sums = psum({"x": x, "y": y, "i": jnp.int32(3) * jnp.ones_like(y, jnp.int32)})
            return (sums["x"] * sums["y"] * sums["i"].astype(np.float32)).sum()

        def body(x):
            return jax.grad(loss)(x, x + 1)

        return sharded(body, mesh_of(2), check_vma=check_vma)

    same_bits(make, X)


def test_vmap(check_vma):
    def make(psum):
        def body(x):
            both = jax.vmap(lambda a, b: psum({"a": a, "b": b}), in_axes=(1, None))
            twice = jax.vmap(jax.vmap(lambda a: psum(a * a)), out_axes=1)
            return both(x, x[0]), twice(x)

        return sharded(body, mesh_of(2), out_specs=P(), check_vma=check_vma)

    same_bits(make, X)


def test_vmap_between_start_and_done(check_vma):
    mesh = mesh_of(2)
    start = sharded(
        jax.vmap(lambda x: jax_passing.psum_start(x, "d"), in_axes=1), mesh, out_specs=P(), check_vma=check_vma
    )
    done = sharded(jax.vmap(jax_passing.psum_done), mesh, P(), P(), check_vma=check_vma)
    np.testing.assert_array_equal(jax.jit(done)(jax.jit(start)(X)), TOTAL.T)


def test_vmap_over_a_declared_axis():
    same_bits(lambda psum: jax.vmap(lambda x: psum(x, "v") * x, axis_name="v"), X)


def pipeline(psum_start, psum_done, check_vma, steps=5):
    """In each step a sum of the step before it is finished, and the next one started."""

    def body(x):
        def step(carry, t):
            handle, x = carry
            x = x * 0.5 + 0.1 * t * psum_done(handle)
            return (psum_start(jnp.sin(x)), x), x.sum()

        if check_vma:
            x = jax.lax.pcast(x, (), to="varying")
        (handle, x), sums = jax.lax.scan(step, (psum_start(x), x), jnp.arange(steps, dtype=np.float32))
        return x + psum_done(handle), sums[None]

    return body


@pytest.mark.parametrize("differentiated", [False, True])
def test_a_handle_in_the_carry_of_a_scan(check_vma, differentiated):
    pairs = (
        (lambda x: jax_passing.psum_start(x, "d"), jax_passing.psum_done),
        (lambda x: jax_passing.psum(x, "d"), lambda x: x),
    )

    def program(pair):
        f = sharded(pipeline(*pair, check_vma), mesh_of(2), out_specs=(P("d"), P("d")), check_vma=check_vma)
        return jax.jit(jax.grad(lambda x: (f(x)[0] ** 2).sum()) if differentiated else f)

    x = X / 8
    ours, theirs = (program(pair)(x) for pair in pairs)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), ours, theirs)
    assert not _native.unfinished_handles()


def test_no_sum_in_loops_and_branches(check_vma):
    def body(x):
        nothing = jax_passing.no_sum(x, "d")

        def step(carry):
            i, handle, total = carry
            total = total + jax_passing.psum_done(handle)
            handle = jax.lax.cond(i % 2 == 0, lambda: jax_passing.psum_start(x, "d"), lambda: nothing)
            return i + 1, handle, total

        start = (jnp.int32(0), nothing, jnp.zeros(x.shape, x.dtype))
        _, handle, total = jax.lax.while_loop(lambda carry: carry[0] < 5, step, start)
        return total + jax_passing.psum_done(handle)

    total = jax.jit(sharded(body, mesh_of(2), out_specs=P(), check_vma=check_vma))(X)
    np.testing.assert_array_equal(total, 3 * TOTAL)


def test_after_keeps_values_and_gradients(check_vma):
    def make(psum):
        def loss(x):
            total = psum(x)
            if psum is apart:
                total = jax_passing.psum_done(jax_passing.psum_start(x, "d"), after={"a": jnp.sin(x), "b": 1.0})
            return (total * total).sum()

        return sharded(lambda x: jax.grad(loss)(x), mesh_of(2), check_vma=check_vma)

    same_bits(make, X)


def test_no_sum_takes_dtypes_as_jax_does():
    tree = {"w": np.zeros((4, 3)), "n": np.zeros(3, np.int64), "s": np.float64(2), "flag": np.bool_(True)}
    start = sharded(lambda x: jax_passing.psum_start(tree, "d"), mesh_of(2), out_specs=P(), check_vma=False)
    assert jax.tree.structure(jax_passing.no_sum(tree, "d")) == jax.tree.structure(jax.eval_shape(start, X))


def test_some_elements_of_a_vmap_have_another_handle():
    def body(x):
        def one(row, starts):
            nothing = jax_passing.no_sum(row, "d")
            return jax_passing.psum_done(
                jax.lax.cond(starts, lambda: jax_passing.psum_start(row, "d"), lambda: nothing)
            )

        return jax.vmap(one)(x, jnp.arange(len(x)) > 0)

    with pytest.raises(jax.errors.JaxRuntimeError, match="UsageError.*no handle's number"):
        jax.block_until_ready(jax.jit(sharded(body, mesh_of(2), out_specs=P(), check_vma=False))(X))

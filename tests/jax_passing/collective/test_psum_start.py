"""Sums that are started in one place and finished in another give what `psum` gives, in a world of one host."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing import _native
from jax_passing.errors import ConfigError, HandleError, UnfinishedHandlesWarning, UnsupportedDtypeError, typed
from support.jax.as_lax import X, mesh_of, sharded
from support.jax.on_mesh import bits, values

TOTAL = X[:4] + X[4:]  # over two devices

pytestmark = pytest.mark.usefixtures("session", "compiled_fast")


def apart(tree, axis="d", **options):
    return jax_passing.psum_done(jax_passing.psum_start(tree, axis, **options))


SUMS = (apart, lambda tree, axis="d", **_: jax_passing.psum(tree, axis))


def same_bits(make, *args):
    """`make(psum)` is a function of args; runs it with a sum in two parts, and with `psum`, under jit."""
    ours, theirs = (jax.jit(make(psum))(*args) for psum in SUMS)
    assert bits(ours) == bits(theirs)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    assert not _native.unfinished_handles()


def same(make, *args):
    """As `same_bits`, up to how XLA joins the operations around a sum."""
    ours, theirs = (jax.jit(make(psum))(*args) for psum in SUMS)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), ours, theirs)
    assert not _native.unfinished_handles()


@pytest.fixture
def starts_and_done(check_vma):
    """Two programs: one starts what the other finishes."""
    mesh = mesh_of(2)
    start = jax.jit(sharded(lambda tree: jax_passing.psum_start(tree, "d"), mesh, out_specs=P(), check_vma=check_vma))
    done = jax.jit(sharded(jax_passing.psum_done, mesh, P(), P(), check_vma=check_vma))
    return start, done


def error_of(action):
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(action())
    return typed(raised.value)


# Values.


@pytest.mark.parametrize("bucket_bytes", [1, 25 << 20])
def test_every_dtype_and_shape(check_vma, bucket_bytes):
    dtypes = ("bool", "int8", "int32", "uint16", "bfloat16", "float16", "float32", "complex64")
    tree = {dtype: values(np.dtype(np.float32), (2, 5, 3)).astype(dtype) for dtype in dtypes}
    tree |= {"empty": np.zeros((2, 0, 2), np.float32), "scalar": values(np.dtype(np.float32), (2,))}

    def make(psum):
        return sharded(
            lambda tree: psum(tree, bucket_bytes=bucket_bytes), mesh_of(2), out_specs=P(), check_vma=check_vma
        )

    same_bits(make, tree)


def test_numbers_and_trees_without_elements(check_vma):
    def body(x):
        return apart({"count": 1, "half": 0.5, "x": x}), apart({}), apart([x[:0]])

    found, empty, nothing = jax.jit(sharded(body, mesh_of(2), out_specs=P(), check_vma=check_vma))(X)
    assert (found["count"], found["half"]) == (2, 1)
    assert empty == {}
    assert nothing[0].shape == (0, 6)


@pytest.mark.parametrize("axis", ["d", "m", ("m", "d"), ()])
@pytest.mark.parametrize("declared", ["d", "m", "other"])
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


def test_grad_and_second_derivative(check_vma):
    def make(psum):
        def loss(x):
            return (jnp.sin(psum(x**2)) * (1 if check_vma else x)).sum()

        def body(x):
            return jax.grad(loss)(x), jax.jvp(jax.grad(loss), (x,), (jnp.cos(x),))

        return sharded(body, mesh_of(2), check_vma=check_vma)

    same(make, X)


def test_grad_from_outside(check_vma):
    def make(psum):
        f = sharded(lambda x: jnp.tanh(psum(jnp.sin(x)) * 0.1) * x, mesh_of(2), check_vma=check_vma)
        return jax.grad(lambda x: (f(x) ** 2).sum())

    same(make, X)


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


def test_vmap_between_start_and_done(starts_and_done, check_vma):
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


def test_checkpoint(check_vma):
    def make(psum):
        def loss(x):
            return (jax.checkpoint(lambda x: jnp.sin(psum(jnp.sin(x)) * 0.1))(x)).sum()

        return sharded(lambda x: jax.grad(loss)(x), mesh_of(2), check_vma=check_vma)

    same_bits(make, X)


def test_after_keeps_values_and_gradients(check_vma):
    def make(psum):
        def loss(x):
            total = psum(x)
            if psum is apart:
                total = jax_passing.psum_done(jax_passing.psum_start(x, "d"), after={"a": jnp.sin(x), "b": 1.0})
            return (total * total).sum()

        return sharded(lambda x: jax.grad(loss)(x), mesh_of(2), check_vma=check_vma)

    same_bits(make, X)


# From one program to another.


def test_across_programs_in_any_order_with_donation(starts_and_done):
    start, done = starts_and_done
    done = jax.jit(done, donate_argnums=0)
    handles = [start({"x": X * i, "flag": i < X}) for i in range(6)]
    for i in (3, 0, 5, 1, 4, 2):
        found = done(handles[i])
        np.testing.assert_array_equal(found["x"], TOTAL * i)
        np.testing.assert_array_equal(found["flag"], (X[:4] > i).astype(np.int32) + (X[4:] > i))


def test_pmap():
    handle = jax.pmap(lambda x: jax_passing.psum_start(x, "d"), axis_name="d")(X[:2])
    totals = jax.pmap(jax_passing.psum_done, axis_name="d")(handle)
    np.testing.assert_array_equal(totals, np.stack([X[0] + X[1]] * 2))


def test_the_structure_is_that_of_any_sum_of_such_a_tree(starts_and_done):
    start, done = starts_and_done
    tree = {"x": X, "flag": X > 1}
    shapes = {"x": jax.ShapeDtypeStruct((4, 6), np.float32), "flag": jax.ShapeDtypeStruct((4, 6), np.bool_)}
    nothing, handle, another = jax_passing.no_sum(shapes, "d"), start(tree), start({"x": X})
    assert jax.tree.structure(nothing) == jax.tree.structure(handle) != jax.tree.structure(another)
    done(handle), done(another)
    for _ in range(2):
        zeros = done(nothing)
        assert (zeros["x"].dtype, zeros["flag"].dtype) == (np.float32, np.int32)
        assert not zeros["x"].any()
        assert not zeros["flag"].any()
    assert "2 arrays over d" in repr(nothing)


def test_finished_handles_take_no_memory():
    """Ten thousand of them: each would keep 64 KiB."""

    def body(x):
        return jax.lax.fori_loop(0, 10_000, lambda _, x: apart(x), x)

    f = jax.jit(jax.shard_map(body, mesh=mesh_of(1), in_specs=P("d"), out_specs=P("d"), check_vma=False))
    x = np.ones(1 << 14, np.float32)
    before = _resident_bytes()
    np.testing.assert_array_equal(f(x), x)
    assert not _native.unfinished_handles()
    assert _resident_bytes() - before < 200 << 20  # of 640 MiB


def _resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


# Errors.


def test_a_handle_is_finished_once(starts_and_done):
    start, done = starts_and_done
    handle = start(X)
    done(handle)
    error = error_of(lambda: done(handle))
    assert isinstance(error, HandleError)
    assert "test_psum_start.py:" in str(error)
    assert "psum_done: this handle was finished already" in str(error)
    assert "no_sum" in str(error)
    np.testing.assert_array_equal(done(start(X)), TOTAL)  # the session goes on


@pytest.mark.parametrize(
    "change",
    [
        lambda token: token / 2,
        lambda token: token + token,
        lambda token: token * 3,
        lambda token: token + 1,
        lambda token: -token,
        lambda token: token * np.float32(np.nan),
        lambda token: (token + 8).astype(jnp.bfloat16),
    ],
)
def test_what_was_calculated_with_a_handle_is_none(starts_and_done, change):
    start, done = starts_and_done
    handle = start(X)
    changed = jax.tree.map(lambda token: change(token).astype(np.float32), handle)
    error = error_of(lambda: done(changed))
    assert isinstance(error, HandleError)
    assert "something was calculated with it" in str(error)
    done(handle)


def test_a_handle_of_other_arrays(starts_and_done):
    start, done = starts_and_done
    handle, other = start(X), start(np.concatenate([X, X], 1))
    swapped = jax.tree.unflatten(jax.tree.structure(other), jax.tree.leaves(handle))
    error = error_of(lambda: done(swapped))
    assert isinstance(error, HandleError)
    assert "other shapes or dtypes" in str(error)
    done(handle), done(other)


def test_another_session(session, starts_and_done):
    start, done = starts_and_done
    old = start(X)
    with pytest.warns(UnfinishedHandlesWarning, match=r"1 of test_psum_start\.py:\d+:\d+ .*psum_start of float32"):
        session.shutdown()
    with jax_passing.init(world_size=1, rank=0, axis_name="d"):
        error = error_of(lambda: done(old))
        assert isinstance(error, HandleError)
        assert "former session" in str(error)
        assert "no_sum" in str(error)
        new = start(X)
        assert not set(map(float, jax.tree.leaves(new))) & set(map(float, jax.tree.leaves(old)))
        np.testing.assert_array_equal(done(new), TOTAL)


def test_a_session_without_unfinished_handles_does_not_warn(session, starts_and_done):
    start, done = starts_and_done
    done(start(X))
    with warnings.catch_warnings(action="error"):
        session.shutdown()


def test_so_many_handles_may_be_unfinished(session, starts_and_done):
    start, done = starts_and_done
    handles = [start(X) for _ in range(64)]
    error = error_of(lambda: start(X))
    assert isinstance(error, HandleError)
    assert "64 handles of this call aren't finished" in str(error)
    assert "psum_start of float32[4,6]" in str(error)
    assert isinstance(error_of(lambda: start(X + 1)), HandleError)  # the session has failed
    assert done(handles[0]).shape == (4, 6)
    session._shut_down(abandon="the test is over")


def test_what_is_no_handle_and_what_cannot_be_started():
    def on(body):
        return jax.jit(sharded(body, mesh_of(2), out_specs=P(), check_vma=False))

    with pytest.raises(HandleError, match="not ArrayImpl|not JitTracer|not DynamicJaxprTracer"):
        on(jax_passing.psum_done)(X)
    with pytest.raises(ConfigError, match="can't be started in one place.*strategy='passing'"):
        on(lambda x: apart(x, strategy="native"))(X)
    with pytest.raises(UnsupportedDtypeError, match="psum_start of float8"):
        on(lambda x: apart({"w": x.astype(jnp.float8_e4m3fn)}))(X)
    with pytest.raises(UnsupportedDtypeError, match=r"psum_start of float8_e5m2 at \['w'\]"):
        jax_passing.no_sum({"w": jax.ShapeDtypeStruct((2,), jnp.float8_e5m2)}, "d")
    with pytest.raises(NameError, match="unbound axis name"):
        on(lambda x: apart(x, "nowhere"))(X)


def test_other_platforms_are_refused_by_name():
    program = jax.jit(sharded(apart, jax.sharding.Mesh(jax.devices()[:1], ("d",)), out_specs=P(), check_vma=False))
    for platform in ("cuda", "tpu"):
        with pytest.raises(NotImplementedError, match=f"apart on CPU devices, not on {platform}"):
            program.trace(jnp.ones(4)).lower(lowering_platforms=(platform,))

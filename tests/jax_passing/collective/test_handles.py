"""Handles of sums go from one program to another, are finished once, and tell what is wrong with them."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing import _native
from jax_passing.errors import ConfigError, UnfinishedHandlesWarning, UsageError, typed
from support.jax.as_lax import X, apart, mesh_of, sharded

pytestmark = pytest.mark.usefixtures("session", "compiled_fast")

TOTAL = X[:4] + X[4:]  # over two devices


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
    assert isinstance(error, UsageError)
    assert "test_handles.py:" in str(error)
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
    assert isinstance(error, UsageError)
    assert "something was calculated with it" in str(error)
    done(handle)


@pytest.mark.parametrize("change", [lambda token: token.astype(jnp.bfloat16), lambda token: jnp.stack([token, token])])
def test_a_handle_of_another_type_is_none(starts_and_done, change):
    start, done = starts_and_done
    handle = start(X)
    with pytest.raises(UsageError, match=r"this handle holds (bfloat16\[\]|float32\[2\]).* instead of float32\[\]"):
        done(jax.tree.map(change, handle))
    done(handle)


def test_a_handle_of_other_arrays(starts_and_done):
    start, done = starts_and_done
    handle, other = start(X), start(np.concatenate([X, X], 1))
    swapped = jax.tree.unflatten(jax.tree.structure(other), jax.tree.leaves(handle))
    error = error_of(lambda: done(swapped))
    assert isinstance(error, UsageError)
    assert "other shapes or dtypes" in str(error)
    done(handle), done(other)


def test_another_session(session, starts_and_done):
    start, done = starts_and_done
    old = start(X)
    with pytest.warns(UnfinishedHandlesWarning, match=r"1 of test_handles\.py:\d+:\d+ .*psum_start of float32"):
        session.shutdown()
    with jax_passing.init(world_size=1, rank=0, axis_name="d"):
        error = error_of(lambda: done(old))
        assert isinstance(error, UsageError)
        assert "former session" in str(error)
        assert "no_sum" in str(error)
        new = start(X)
        assert not set(map(float, jax.tree.leaves(new))) & set(map(float, jax.tree.leaves(old)))
        np.testing.assert_array_equal(done(new), TOTAL)


def test_a_session_without_unfinished_handles_does_not_warn(session, starts_and_done):
    start, done = starts_and_done
    jax.block_until_ready(done(start(X)))
    with warnings.catch_warnings(action="error"):
        session.shutdown()


def test_whoever_uses_a_part_of_the_sums_finishes_all(session, starts_and_done, check_vma):
    start, _ = starts_and_done
    part = jax.jit(
        sharded(lambda handle: jax_passing.psum_done(handle)["x"], mesh_of(2), P(), P(), check_vma=check_vma)
    )
    total = jax.jit(part)(start({"x": X, "count": X.astype(np.int32)}))
    np.testing.assert_array_equal(jax.block_until_ready(total), TOTAL)  # on all devices, not on the first one alone
    with warnings.catch_warnings(action="error"):
        session.shutdown()


def test_so_many_handles_may_be_unfinished(session, starts_and_done):
    start, done = starts_and_done
    handles = [start(X) for _ in range(64)]
    error = error_of(lambda: start(X))
    assert isinstance(error, UsageError)
    assert "64 handles of this call aren't finished" in str(error)
    assert "psum_start of float32[4,6]" in str(error)
    assert isinstance(error_of(lambda: start(X + 1)), UsageError)  # the session has failed
    assert done(handles[0]).shape == (4, 6)
    session._shut_down(abandon="the test is over")


def test_what_is_no_handle_and_what_cannot_be_started():
    def on(body):
        return jax.jit(sharded(body, mesh_of(2), out_specs=P(), check_vma=False))

    with pytest.raises(UsageError, match="not ArrayImpl|not JitTracer|not DynamicJaxprTracer"):
        on(jax_passing.psum_done)(X)
    with pytest.raises(ConfigError, match="can't be started in one place.*strategy='passing'"):
        on(lambda x: apart(x, strategy="native"))(X)
    with pytest.raises(ConfigError, match="Unknown wire_dtype 'int5'"):
        on(lambda x: apart(x, wire_dtype="int5"))(X)
    with pytest.raises(UsageError, match="psum_start of float8"):
        on(lambda x: apart({"w": x.astype(jnp.float8_e4m3fn)}))(X)
    with pytest.raises(UsageError, match=r"psum_start of float8_e5m2 at \['w'\]"):
        jax_passing.no_sum({"w": jax.ShapeDtypeStruct((2,), jnp.float8_e5m2)}, "d")
    with pytest.raises(NameError, match="unbound axis name"):
        on(lambda x: apart(x, "nowhere"))(X)


def test_other_platforms_are_refused_by_name():
    program = jax.jit(sharded(apart, jax.sharding.Mesh(jax.devices()[:1], ("d",)), out_specs=P(), check_vma=False))
    for platform in ("cuda", "tpu"):
        with pytest.raises(NotImplementedError, match=f"apart on CPU devices, not on {platform}"):
            program.trace(jnp.ones(4)).lower(lowering_platforms=(platform,))

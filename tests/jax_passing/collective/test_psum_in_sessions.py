"""Sums where the session ends, another one begins, or another thread comes."""

import functools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.errors import ConfigError, UsageError
from jax_passing.optax import stale
from support.jax.on_mesh import on_mesh as on_mesh_of

pytestmark = pytest.mark.usefixtures("session")

on_mesh = functools.partial(on_mesh_of, devices=4, out_specs=P())


def test_without_session(session):
    f = on_mesh(lambda x: jax_passing.psum(x, "d"))
    x = jnp.ones(4)
    f(x)
    compiled = f.lower(x).compile()
    session.shutdown()
    with pytest.raises(UsageError, match=r"jax_passing\.init\(\)"):
        f(x)
    with pytest.raises(jax.errors.JaxRuntimeError, match="UsageError: no session"):
        compiled(x).block_until_ready()
    with jax_passing.init(world_size=1, rank=0, axis_name="d"):
        assert f(x).item() == 4
        assert compiled(x).item() == 4


def test_tracing_needs_no_session_but_the_number_of_devices_does(session):
    session.shutdown()
    shape = jax.eval_shape(on_mesh(lambda x: jax_passing.psum(x, "d")), jnp.ones((4, 3)))
    assert shape.shape == (1, 3)
    loss = jax_passing.overlap(lambda w, x: jnp.mean(w * x), "d")
    functions = {
        "tracing jax_passing.psum": lambda x: x * jax_passing.psum(1, "d"),
        "tracing jax_passing.pmean": lambda x: jax_passing.pmean(x, "d"),
        "tracing jax_passing.axis_size": lambda x: x * jax_passing.axis_size("d"),
        "tracing jax_passing.overlap": lambda x: loss(1.0, x)[1],
        "tracing jax_passing.optax.stale": lambda x: stale(optax.identity(), "d", staleness=0).update(x, None)[0],
        "running jax_passing.psum at": lambda x: jax_passing.psum(x, "d"),
        "running jax_passing.pmax at": lambda x: jax_passing.pmax(x, "d"),
        "running a gradient's sum at": lambda x: jax.grad(lambda w: jnp.sum(jax_passing.pvary(w, "d") * x))(1.0),
    }
    for what, function in functions.items():
        with pytest.raises(UsageError, match=f"call jax_passing.init.. before {what}"):
            on_mesh(function)(jnp.ones(4))


@pytest.mark.parametrize("devices", [1, 2])
def test_executions_of_an_earlier_session_never_join_the_next(session, devices):
    def slow(count, x):
        x = jax.lax.fori_loop(0, count[0], lambda _, x: jnp.sin(x @ x), x)
        return jax_passing.psum(x, "d")

    f = on_mesh(slow, in_specs=(P(), P("d")), devices=devices)
    x = jnp.ones((devices * 200, 200))
    f(jnp.array([0]), x).block_until_ready()
    late = f(jnp.array([1000]), x)
    assert not late.is_ready()
    session._shut_down(abandon="a failure of the job")  # doesn't wait for dispatched executions
    with jax_passing.init(world_size=1, rank=0, axis_name="d"):
        with pytest.raises(jax.errors.JaxRuntimeError, match="UsageError"):
            late.block_until_ready()
        np.testing.assert_array_equal(f(jnp.array([0]), x), devices * x[:200])


def test_steady_state_neither_retraces_nor_relowers():
    traces = 0

    def count(x):
        nonlocal traces
        traces += 1
        return jax_passing.psum(x, "d")

    f = on_mesh(count)
    for step in range(5):
        assert f(jnp.full(4, float(step))).item() == 4 * step
    assert traces == 1


def test_another_thread_needs_a_stream(session):
    f = on_mesh(lambda x: jax_passing.psum(x, "d"))
    x = jnp.arange(4.0)
    assert f(x) == 6

    def beside():
        with pytest.raises(UsageError, match=r"jax_passing\.stream\('name'\)"):
            f(x)
        with jax_passing.stream("beside"):
            with pytest.raises(ConfigError, match="in use"), jax_passing.stream("beside"):
                pass
            return float(f(x)[0])

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(beside).result() == 6


def test_an_executable_stays_in_the_stream_in_which_it_was_lowered(session):
    x = jnp.arange(4.0)

    def compiled(f):
        return f.lower(x).compile()

    def program(x):
        return jax_passing.psum(x, "d")

    ours = compiled(on_mesh(program))
    without_sums = compiled(jax.jit(lambda x: x + 1))
    name = 'a "name" with \\ and é'

    def beside():
        np.testing.assert_array_equal(without_sums(x), x + 1)
        with pytest.raises(UsageError, match=r"jax_passing\.stream\('name'\)"):
            ours(x)
        with jax_passing.stream(name):
            theirs = compiled(on_mesh(program))
            assert theirs(x) == 6
            with pytest.raises(UsageError, match="lowered in the thread that called jax_passing.init is called"):
                ours(x)
        with jax_passing.stream("another"), pytest.raises(UsageError, match=r"lowered in the stream 'a \"name\" .*é'"):
            theirs(x)
        return theirs

    assert ours(x) == 6
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(beside).result()
    assert ours(x) == 6
    np.testing.assert_array_equal(without_sums(x), x + 1)
    with pytest.raises(UsageError, match="is called in the thread that called jax_passing.init: hosts"):
        theirs(x)

"""`jax.disable_jit()`, which debuggers ask for, changes nothing: primitives outside of jit compile all the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.errors import RankZeroError
from support.jax.on_mesh import mesh_of

pytestmark = pytest.mark.usefixtures("session", "compiled_fast")

# Each function of one device's (or element's) number, and its results for 1 and 2.
OVER_AN_AXIS = {
    "all_gather": (lambda x: jax_passing.all_gather(x, "d"), [[1, 2], [1, 2]]),
    "axis_index": (lambda x: jax_passing.axis_index("d") + 0 * x.astype(np.int32), [0, 1]),
    "axis_size": (lambda x: jax_passing.axis_size("d") * x, [2, 4]),
    "broadcast": (lambda x: jax_passing.broadcast(x, "d", root=1), [2, 2]),
    "overlap": (lambda x: jax_passing.overlap(lambda p, x: p * x, "d")(jnp.float32(2), x)[1], [1.5, 1.5]),
    "per_host_gradients": (lambda x: per_host(x), [3, 3]),
    "pmax": (lambda x: jax_passing.pmax(x, "d"), [2, 2]),
    "pmean": (lambda x: jax_passing.pmean(x, "d"), [1.5, 1.5]),
    "pmin": (lambda x: jax_passing.pmin(x, "d"), [1, 1]),
    "psum": (lambda x: jax_passing.psum(x, "d"), [3, 3]),
    "psum_done": (lambda x: jax_passing.psum_done(jax_passing.psum_start(x, "d")), [3, 3]),
    "psum_scatter": (lambda x: jax_passing.psum_scatter(jnp.stack([x, 10 * x]), "d"), [3, 30]),
    "psum_start": (lambda x: jax.grad(lambda x: jax_passing.psum_done(jax_passing.psum_start(x, "d")))(x), [2, 2]),
    "no_sum": (lambda x: jax_passing.psum_done(jax_passing.no_sum(x, "d")), [0, 0]),
    "pvary": (lambda x: jax.grad(lambda p: jax_passing.pvary(p, "d") * x)(jnp.float32(2)), [3, 3]),
}
BETWEEN_HOSTS = {
    "barrier": lambda: jax_passing.barrier(),
    "on_rank_zero": lambda: jax_passing.on_rank_zero(lambda: None),
    "process_sum": lambda: jax_passing.process_sum({"a": 2, "b": np.arange(3)})["b"].tolist(),
}
OTHERS = {  # public names that are no collectives
    "PsumHandle", "Plan", "Pipeline", "Session", "StageJob", "cut", "errors", "fixed_size", "init", "optax",
    "partition", "pipeline", "session", "simulate", "stage_job", "stream", "use_for_jax",
}  # fmt: skip


def per_host(x):
    with jax_passing.per_host_gradients():
        return jax_passing.psum(x, "d")


def test_no_public_collective_is_missing_here():
    assert set(dir(jax_passing)) - OTHERS == set(OVER_AN_AXIS) | set(BETWEEN_HOSTS)


@pytest.mark.parametrize("name", OVER_AN_AXIS)
def test_collectives_over_an_axis(name):
    function, expected = OVER_AN_AXIS[name]
    x = jnp.array([1, 2], np.float32)
    with jax.disable_jit():
        assert jax.vmap(function, axis_name="d")(x).tolist() == expected
        specs = {"in_specs": P("d"), "out_specs": P("d"), "check_vma": False}
        results = jax.shard_map(lambda x: function(x[0])[None], mesh=mesh_of(2), **specs)(x)
    assert results.tolist() == expected


@pytest.mark.parametrize("name", BETWEEN_HOSTS)
def test_functions_between_hosts(name):
    with jax.disable_jit():
        assert BETWEEN_HOSTS[name]() == ([0, 1, 2] if name == "process_sum" else None)


def test_rank_zero_still_tells_what_it_raised():
    with jax.disable_jit(), pytest.raises(RankZeroError, match="ZeroDivisionError"):
        jax_passing.on_rank_zero(lambda: 1 // 0)

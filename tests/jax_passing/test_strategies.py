"""Strategies in a world of one host; several hosts: tests/end_to_end/test_strategies.py."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing import planner
from jax_passing.errors import ConfigError, UnvaryingInputError

sums = importlib.import_module("jax_passing.psum")  # the name psum in the package is the function's


def program(x, check_vma=False, **options):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def f(x):
        return jax_passing.psum({"a": x, "b": (x > 2, x.astype(jnp.int32))}, "d", **options), jax_passing.pmean(
            x, "d", **options
        )

    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P(), check_vma=check_vma)).trace(x)


X = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("strategy", ["passing", "flat", "native", "auto"])
def test_all_give_the_same_on_one_host(strategy, check_vma):
    traced = program(X, check_vma, strategy=strategy)
    (result, mean) = traced.lower().compile()(X)
    np.testing.assert_array_equal(result["a"], X.sum(0, keepdims=True))
    np.testing.assert_array_equal(result["b"][0], (X > 2).sum(0, keepdims=True))
    assert result["b"][0].dtype == jnp.int32
    np.testing.assert_array_equal(mean, X.mean(0, keepdims=True))
    ours = "passing_psum" in str(traced.jaxpr)
    assert ours == (strategy != "native")


@pytest.mark.parametrize("strategy", ["native", "passing"])
def test_the_session_has_a_default(strategy):
    with jax_passing.init(strategy=strategy):
        assert ("passing_psum" in str(program(X).jaxpr)) == (strategy == "passing")
        assert "passing_psum" in str(program(X, strategy="passing").jaxpr)


@pytest.mark.usefixtures("session")
def test_gradient_and_vmap_through_native():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def f(psum):
        def loss(x):
            return jax.vmap(lambda v: psum(v * v, ("d", "v")), axis_name="v")(x).sum()

        return jax.jit(jax.shard_map(jax.grad(loss), mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))

    native = f(lambda x, axes: jax_passing.psum(x, axes, strategy="native"))
    np.testing.assert_array_equal(native(X), f(jax.lax.psum)(X))


@pytest.mark.usefixtures("session")
def test_unvarying_input_raises_with_every_strategy():
    for strategy in ("passing", "native", "auto"):
        with pytest.raises(UnvaryingInputError):
            mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
            jax.jit(
                jax.shard_map(
                    lambda x, s=strategy: jax_passing.psum(x, "d", strategy=s), mesh=mesh, in_specs=P(), out_specs=P()
                )
            ).trace(X)


@pytest.mark.usefixtures("session")
def test_a_misspelt_strategy():
    with pytest.raises(ConfigError, match="Unknown strategy 'nativ'. Did you mean native?"):
        program(X, strategy="nativ")


def test_native_needs_a_mesh_over_all_hosts():
    with pytest.raises(ConfigError, match=r"other 3 hosts.*jax.distributed.initialize.*strategy='passing'"):
        sums._checked("native", "passing", 4, beyond_mesh=True)
    assert sums._checked("native", "native", 4, beyond_mesh=False) == "native"
    assert sums._checked("native", "passing", 1, beyond_mesh=True) == "native"


class Hosts:
    """Of a session, what auto asks."""

    def __init__(self, world_size, **cluster):
        self.world_size, self._cluster = world_size, cluster

    def cluster(self, devices_per_host):
        return planner.Cluster(self.world_size, devices_per_host, **self._cluster)


@pytest.mark.parametrize(
    ("hosts", "beyond_mesh", "chosen"),
    [
        (Hosts(8, link_gbit=1.0), False, "passing"),
        (Hosts(8, link_gbit=1.0), True, "passing"),
        (Hosts(8, link_gbit=1.0, shards=1), False, "native"),
        (Hosts(8, link_gbit=1.0, shards=1), True, "passing"),  # native would sum over this host alone
        (Hosts(1, link_gbit=1.0), False, "passing"),
    ],
)
def test_auto_follows_the_planner(hosts, beyond_mesh, chosen):
    assert sums._choice(hosts, [jnp.ones(1 << 20)], 16, beyond_mesh) == chosen

"""Strategies in a world of one host; several hosts: tests/end_to_end/sums/test_strategies.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.collective.axes import Extent
from jax_passing.collective.primitives import bucketed_sum
from jax_passing.errors import ConfigError
from jax_passing.host.control.ranks import Links
from jax_passing.host.scope import Scope


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
    with jax_passing.init(strategy=strategy, axis_name="d"):
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
def test_a_misspelt_strategy():
    with pytest.raises(ConfigError, match="Unknown strategy 'nativ'. Known are passing, flat, native, auto"):
        program(X, strategy="nativ")


def extent(world_size, over_hosts, default="passing", **more):
    return Extent(("d",), over_hosts, Scope(("d",), world_size, 0, default, **more))


def test_native_needs_a_mesh_over_all_hosts():
    with pytest.raises(ConfigError, match=r"the other hosts would.*jax.distributed.initialize.*strategy='passing'"):
        bucketed_sum.check_strategy("native", extent(4, over_hosts=True))
    assert bucketed_sum.check_strategy("native", extent(4, over_hosts=False)) == "native"
    assert bucketed_sum.check_strategy("native", extent(1, over_hosts=True)) == "native"
    assert bucketed_sum.check_strategy(None, extent(4, over_hosts=False, default="native")) == "native"


def test_native_sends_no_confidential_sums(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    over_processes = extent(4, over_hosts=False, confidential=True)
    with pytest.raises(ConfigError, match=r"travel in the clear.*confidential: use strategy='passing'"):
        bucketed_sum.check_strategy("native", over_processes)
    assert bucketed_sum.check_strategy("auto", over_processes) == "auto"
    assert bucketed_sum.check_strategy("native", extent(1, over_hosts=False, confidential=True)) == "native"
    monkeypatch.setattr(jax, "process_count", lambda: 1)
    assert bucketed_sum.check_strategy("native", over_processes) == "native"  # inside this process


class Hosts:
    """This fake session has only what `auto` asks for."""

    def __init__(self, world_size, switch_gbit=None):
        self.world_size, self.links = world_size, Links(host_gbit=1.0, switch_gbit=switch_gbit, switches=1)


@pytest.mark.parametrize(
    ("hosts", "over_hosts", "chosen"),
    [
        (Hosts(8), False, "passing"),
        (Hosts(8), True, "passing"),
        (Hosts(8, switch_gbit=1.0), False, "native"),
        (Hosts(8, switch_gbit=1.0), True, "passing"),  # native would sum over this host alone
        (Hosts(1), False, "passing"),
    ],
)
def test_auto_follows_the_planner(hosts, over_hosts, chosen, monkeypatch):
    monkeypatch.setattr(bucketed_sum.session, "current", lambda: hosts)
    monkeypatch.setattr(Extent, "mesh_size", 16)
    assert bucketed_sum._choice(extent(hosts.world_size, over_hosts), [jnp.ones(1 << 20)], "full") == chosen
    confidential = extent(hosts.world_size, over_hosts, confidential=True)
    assert bucketed_sum._choice(confidential, [jnp.ones(1 << 20)], "full") == "passing"

"""Arrays that are dealt to the devices of one host, and gathered."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from jax_passing.errors import ConfigError
from jax_passing.optax import Part, deal, gather, part_specs
from support.jax.on_mesh import bits, mesh_of
from support.jax.sharding import PARAMS

pytestmark = pytest.mark.usefixtures("session")


@pytest.mark.parametrize("devices", [1, 3, 8])
def test_gather_undoes_deal(devices):
    mesh = mesh_of(devices)
    tree = PARAMS | {"nan": jnp.array([np.nan, -0.0, 1e-40]), "count": jnp.arange(4), "complex": 1j * jnp.ones(5)}
    parts = deal(tree, "d", mesh)
    dealt = {name for name, leaf in parts.items() if isinstance(leaf, Part)}
    assert dealt == {"bias", "half", "weight", "nan", "complex"}
    for name in dealt:
        size = tree[name].size
        flat = np.zeros(-(-size // devices) * devices, tree[name].dtype)
        flat[:size] = np.asarray(tree[name]).reshape(-1)
        assert bits(parts[name].array) == bits(flat)
        assert {each.data.size for each in parts[name].array.addressable_shards} == {flat.size // devices}
    assert bits(gather(parts, "d", mesh)) == bits(tree)


def test_within_the_axis(check_vma):
    mesh = mesh_of(4)
    roundtrip = jax.shard_map(
        lambda tree: gather(deal(tree, "d"), "d"), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=check_vma
    )
    assert bits(jax.jit(roundtrip)(PARAMS)) == bits(PARAMS)


def test_a_state_is_dealt_by_the_shapes_of_parameters():
    mesh, inner = mesh_of(4), optax.adamw(0.1)
    state = inner.init(PARAMS)
    parts = deal(state, "d", mesh, params=PARAMS)
    assert isinstance(optax.tree.get(parts, "mu")["weight"], Part)
    assert not isinstance(optax.tree.get(parts, "mu")["number"], Part)
    specs = part_specs(parts, "d")
    assert optax.tree.get(specs, "nu")["weight"] == P("d")
    assert optax.tree.get(specs, "count") == P()
    assert bits(gather(parts, "d", mesh)) == bits(state)


def test_outside_of_the_axis_it_needs_a_mesh():
    with pytest.raises(ConfigError, match="give deal the mesh"):
        deal(PARAMS, "d")
    with pytest.raises(ConfigError, match="give gather the mesh"):
        gather(deal(PARAMS, "d", mesh_of(2)), "d")

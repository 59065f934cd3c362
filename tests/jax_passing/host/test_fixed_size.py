"""Programs that know the number of hosts when they are traced, in an elastic session. tests/end_to_end has several."""

import jax
import jax.numpy as jnp
import pytest

import jax_passing
from jax_passing.errors import ConfigError, UsageError
from support.jax.on_mesh import on_mesh


def test_shapes_may_depend_on_the_number_of_hosts_within_it():
    with jax_passing.init(world_size=1, rank=0, axis_name="d", world_size_min=1):
        gather = on_mesh(lambda x: jax_passing.all_gather(x, "d", tiled=True), out_specs=jax.P())
        for _ in range(2):  # a program that was compiled within isn't used outside
            with pytest.raises(ConfigError, match=r"with jax_passing.fixed_size\(\):"):
                gather(jnp.arange(4))
            with jax_passing.fixed_size():
                assert gather(jnp.arange(4)).tolist() == [0, 1, 2, 3]


def test_without_a_session():
    with pytest.raises(UsageError, match="fixed_size"):
        jax_passing.fixed_size()

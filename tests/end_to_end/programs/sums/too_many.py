"""More hosts than a wire has room for, in an elastic session: the sum says so when it runs, and the session goes on."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.errors import ConfigError, translate

with jax_passing.init(axis_name="d"):
    mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))

    def psum(wire: str) -> jax.Array:
        body = jax.shard_map(
            lambda x: jax_passing.psum(x, "d", wire=wire), mesh=mesh, in_specs=P("d"), out_specs=P(), check_vma=False
        )
        return jax.block_until_ready(jax.jit(body)(jnp.ones((1, 3))))

    try:
        with translate():
            psum("int4")
    except ConfigError as error:
        print(f"refused ConfigError: {error}")
    print(f"full gives {psum('full')[0, 0]}")

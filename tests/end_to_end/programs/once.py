"""One sum over all hosts."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import jax_passing

mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
with jax_passing.init() as session:
    body = jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    print("summed", float(jax.jit(body)(jnp.ones(1000))[999]), "over", session.world_size)

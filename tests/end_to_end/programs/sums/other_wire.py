"""A sum on the wire that the argument names, which may differ from the other host's: both hear of that."""

import sys

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import jax_passing

with jax_passing.init(axis_name="d", deadline_s=60):
    mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
    psum = jax.shard_map(
        lambda x: jax_passing.psum(x, "d", wire_dtype=sys.argv[1]),
        mesh=mesh,
        in_specs=P("d"),
        out_specs=P(),
        check_vma=False,
    )
    jax.block_until_ready(jax.jit(psum)(jnp.ones((jax.local_device_count(), 100))))

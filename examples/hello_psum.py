"""The smallest sum over hosts: jax-passing run --hosts 2 --devices-per-host 2 examples/hello_psum.py"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import jax_passing

with jax_passing.init(axis_name="d") as session:
    devices = jax.local_devices()
    mesh = jax.sharding.Mesh(devices, ("d",))

    # Over the devices of the mesh in the host, then over all hosts in the switch: axis "d" was declared to go there.
    total = jax.jit(jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))

    mine = jnp.full((len(devices), 4), session.rank + 1.0)  # one row a device
    print(f"rank {session.rank} of {session.world_size}: {len(devices)} devices with {mine[0]} -> {total(mine)[0]}")

"""An elastic session of which rank 1 holds its interpreter's lock (GIL) for HELD_S, while the others wait for it."""

import ctypes
import os

import jax
import numpy as np

import jax_passing

with jax_passing.init(axis_name="d", world_size_min=2) as session:
    mesh = jax.sharding.Mesh(jax.local_devices()[:1], ("d",))
    spec = jax.sharding.PartitionSpec("d")
    total = jax.jit(jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=spec, out_specs=spec))
    ones = np.ones(8, np.float32)
    total(ones).block_until_ready()
    if session.rank == 1:
        ctypes.PyDLL(None).sleep(int(os.environ["HELD_S"]))  # PyDLL calls keep the lock
    print(f"the sum is {total(ones)[0]}", flush=True)

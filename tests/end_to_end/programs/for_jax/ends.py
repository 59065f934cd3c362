"""A program that ends while its first collective is on its way, and waits for nothing that it has dispatched."""

import os
import time

import jax
import numpy as np
from jax.sharding import PartitionSpec as P
from over_mesh import placed

rank = int(os.environ["HOST_RANK"])
jax.distributed.initialize(os.environ["COORDINATOR"], num_processes=int(os.environ["HOST_COUNT"]), process_id=rank)
mesh = jax.sharding.Mesh(jax.devices(), ("d",))
ones = placed(mesh, np.ones((jax.device_count(), 8), np.float32), ("d",))
mapped = jax.shard_map(lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
time.sleep(3 * rank)
jax.jit(mapped)(ones)

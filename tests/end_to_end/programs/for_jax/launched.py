"""A program as `jax-passing run --for-jax` starts it: one jit over a mesh of all processes."""

import os

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

rank, hosts = (int(os.environ[f"JAX_PASSING_{name}"]) for name in ("RANK", "WORLD_SIZE"))
jax.distributed.initialize(os.environ["COORDINATOR"], num_processes=hosts, process_id=rank)
rows = NamedSharding(jax.sharding.Mesh(jax.devices(), ("d",)), P("d"))
numbers = jax.make_array_from_process_local_data(rows, np.full((jax.local_device_count(),), rank + 1, np.float32))
print(f"sum {jax.jit(lambda x: x.sum())(numbers)} over {jax.config.jax_cpu_collectives_implementation}")

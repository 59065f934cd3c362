"""A program that initializes jax.distributed twice, before its first collective."""

import os
import time

import jax
import numpy as np
from jax.extend.backend import clear_backends
from jax.sharding import PartitionSpec as P
from over_mesh import placed

rank, hosts = int(os.environ["HOST_RANK"]), int(os.environ["HOST_COUNT"])
jax.distributed.initialize(os.environ["COORDINATOR"], hosts, rank)
assert jax.device_count() == hosts
jax.distributed.shutdown()
clear_backends()
time.sleep(rank)  # the others wait for the first one, or it for them
jax.distributed.initialize(os.environ["COORDINATOR_ANEW"], hosts, rank)
mesh = jax.sharding.Mesh(jax.devices(), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
ones = placed(mesh, np.ones(hosts, np.float32), "d")
assert float(jax.jit(lambda x: x.sum(), out_shardings=jax.NamedSharding(mesh, P()))(ones)) == hosts

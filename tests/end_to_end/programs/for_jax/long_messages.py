"""All hosts send and receive long messages at once: around rings in both directions, each to each, and to all."""

import os
import sys
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

BYTES = int(sys.argv[1])  # of each device
PART = BYTES // 16  # elements that all devices get

jax.distributed.initialize(os.environ["COORDINATOR"], int(os.environ["HOST_COUNT"]), int(os.environ["HOST_RANK"]))
size = jax.device_count()
mesh = jax.make_mesh((size,), ("d",))
rows = P("d")
numbers = np.arange(size * (BYTES // 4 // size) * size, dtype=np.int32).reshape(size, -1)


def moved(row: jax.Array) -> dict[str, jax.Array]:
    right = [(each, (each + 1) % size) for each in range(size)]
    return {
        "right": lax.ppermute(row, "d", right),
        "left": lax.ppermute(row, "d", [(b, a) for a, b in right]),
        "each to each": lax.all_to_all(row.reshape(size, -1), "d", 0, 0).reshape(1, -1),
        "to all": lax.all_gather(row[:, :PART], "d").reshape(1, -1),
    }


expected: dict[str, Any] = {
    "right": np.roll(numbers, 1, axis=0),
    "left": np.roll(numbers, -1, axis=0),
    "each to each": numbers.reshape(size, size, -1).transpose(1, 0, 2).reshape(size, -1),
    "to all": np.broadcast_to(numbers[:, :PART].reshape(-1), (size, size * PART)),
}
placed = jax.make_array_from_callback(numbers.shape, NamedSharding(mesh, rows), lambda index: numbers[index])
step = jax.jit(jax.shard_map(moved, mesh=mesh, in_specs=rows, out_specs=rows))
for _ in range(2):
    for name, found in step(placed).items():
        for shard in found.addressable_shards:
            np.testing.assert_array_equal(shard.data, expected[name][shard.index], err_msg=name)

"""Dispatches many executions before it looks at any result: ahead.py COUNT END.

END says what follows: "wait" for the results, "leave" without them, or "raise" an exception.
"""

import sys

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing

ELEMENTS = 100_000
INPUTS = 4


def main(count: int, end: str) -> None:
    session = jax_passing.init(axis_name="d")
    mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
    step = jax.jit(
        jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P(), check_vma=False)
    )
    inputs = [np.full((mesh.size, ELEMENTS), session.rank + i, np.float32) for i in range(INPUTS)]
    xs = [jax.device_put(x, jax.NamedSharding(mesh, P("d"))) for x in inputs]
    jax.block_until_ready(step(xs[0]))
    sums = [step(xs[i % INPUTS]) for i in range(count)]
    if end == "raise":
        raise ValueError("of the program")
    if end == "wait":
        for i, total in enumerate(sums):
            expected = mesh.size * sum(rank + i % INPUTS for rank in range(session.world_size))
            np.testing.assert_array_equal(total, np.full((1, ELEMENTS), expected, np.float32))
        print("all sums are right")
    print("ends")


main(int(sys.argv[1]), sys.argv[2])

"""Independent processes, whose ranks are found: the sum of what each draws from its rank, exactly. With an argument,
`jax.distributed` is initialized first, as the launcher has it."""

import sys

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing


def drawn(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).integers(-(1 << 20), 1 << 20, 5000, dtype=np.int32)


if len(sys.argv) > 1:
    jax.distributed.initialize()
    assert jax.process_count() == int(sys.argv[1])
with jax_passing.init(axis_name="d") as session:
    mesh = jax.sharding.Mesh(jax.local_devices()[:1], ("d",))
    body = jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    total = jax.jit(body)(drawn(session.rank))
    np.testing.assert_array_equal(total, sum(drawn(rank) for rank in range(session.world_size)))
    print(f"rank {session.rank} of {session.world_size}, job {session.settings.job}")

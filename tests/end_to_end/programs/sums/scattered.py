"""Every device gets its part of a sum on the session's wire: of float32 in few bits, of integers the exact one."""

import hashlib
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing

ROW = 1500  # more than a block
REPEATS = 3  # in later ones scales are guessed


def mapped(f: Any, mesh: Any, out_specs: Any) -> Any:
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=out_specs, check_vma=False))


with jax_passing.init(axis_name="d", wire_dtype="int8") as session:
    local = jax.local_device_count()
    mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
    devices, mine = session.world_size * local, slice(session.rank * local, (session.rank + 1) * local)
    scatter = mapped(lambda x: jax_passing.psum_scatter(x[0], "d")[None], mesh, P("d"))
    gather = mapped(lambda x: jax_passing.all_gather(x[0], "d"), mesh, P())
    digest = hashlib.sha256()
    for number in range(REPEATS):
        random = np.random.default_rng(number)
        floats = random.normal(size=(devices, devices, ROW)).astype(np.float32)  # [giver, taker, ...]
        integers = random.integers(-100, 100, floats.shape, np.int32)
        got = np.asarray(scatter(floats[mine]))
        exact = floats.astype(np.float64).sum(0)[mine]
        largest = np.abs(floats.astype(np.float64).reshape(session.world_size, local, devices, ROW).sum(1)).max()
        bound = session.world_size * 2 * largest / (127 // session.world_size)
        assert got.dtype == np.float32
        assert 0 < np.abs(got - exact).max() <= bound
        np.testing.assert_array_equal(scatter(integers[mine]), integers.sum(0)[mine])
        all_parts = np.asarray(gather(got))  # parts keep their bits: nothing is added to them
        np.testing.assert_array_equal(all_parts[mine], got)
        digest.update(all_parts.tobytes())
print(f"digest {digest.hexdigest()}")

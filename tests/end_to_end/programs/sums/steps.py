"""Sums until it is stopped, checks every sum, and prints the number of every hundredth step."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing


def main() -> None:
    mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
    step = jax.jit(
        jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    )
    x = jnp.arange(100_000)
    with jax_passing.init(deadline_s=20, axis_name="d") as session:
        expected = np.arange(100_000) * session.world_size
        for i in range(10**9):
            np.testing.assert_array_equal(step(x), expected)
            if i % 100 == 0:
                print(f"step {i}")


main()

"""One leaf of 1 GiB."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import jax_passing

ELEMENTS = 2**28


def main() -> None:
    with jax_passing.init(axis_name="d") as session:
        mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))

        def total(x: jax.Array) -> jax.Array:
            return jax_passing.psum(x, "d")

        pattern = jnp.arange(ELEMENTS, dtype=jnp.float32) % 1000
        step = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False))
        out = step(pattern + session.rank)
        expected = session.world_size * pattern + sum(range(session.world_size))
        # Integers below 2^11 are exact in fixed point, whose unit here is 2^-18 (docs/internals/fixed_point.md).
        assert bool(jnp.array_equal(out, expected))
        assert session.stats()["tensor_bytes"] == 4 * ELEMENTS
    print("large done")


main()

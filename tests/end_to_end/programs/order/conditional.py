"""Sums in branches and loops that not every execution takes: right where all hosts take the same, else an error."""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing

STEPS = 8


def main(kind: str, agree: bool) -> None:
    start = time.monotonic()
    try:
        with jax_passing.init(deadline_s=5, warn_s=2, axis_name="d") as session:
            start = time.monotonic()
            mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
            devices = jax.local_device_count() * session.world_size

            def total(x: jax.Array) -> jax.Array:
                return jax_passing.psum(x, "d")

            def spmd(body):
                return jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)

            def branch(x: jax.Array, count: jax.Array) -> jax.Array:
                return jax.lax.cond(count > 0, total, lambda x: 0 * x, x)

            def loop(x: jax.Array, count: jax.Array) -> jax.Array:
                def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
                    i, _ = carry
                    return i + 1, total(x)

                return jax.lax.while_loop(lambda carry: carry[0] < count, body, (0, 0 * x))[1]

            def outside(x: jax.Array, count: jax.Array) -> jax.Array:
                return jax.lax.cond(count > 0, spmd(total), lambda x: 0 * x, x)

            def dead(x: jax.Array, count: jax.Array) -> jax.Array:
                def summed(x: jax.Array, unused: jax.Array) -> jax.Array:
                    return total(x + 0 * unused)  # XLA removes the operand, and what hangs on it

                return jax.lax.cond(count > 0, summed, lambda x, _: 0 * x, x, jnp.int32(3) + count)

            step = jax.jit({"branch": spmd(branch), "loop": spmd(loop), "dead": spmd(dead), "outside": outside}[kind])
            for number in range(STEPS):
                # Two executions out of three come to sums; on disagreeing hosts, others of them.
                count = (number + (0 if agree else session.rank)) % 3
                x = np.full(3, 10.0 * (number + 1), np.float32)
                # Where an array lies, JAX compiles again: the sums are those of the same program all the same.
                x = jax.device_put(x, jax.NamedSharding(mesh, P())) if number % 4 == 1 else x
                expected = devices * 10.0 * (number + 1) if count else 0
                np.testing.assert_array_equal(np.asarray(step(x, jnp.int32(count))), np.full(3, expected, np.float32))
            print("all steps are right")
    except jax_passing.errors.PassingError as error:
        print(f"raised {type(error).__name__} after {time.monotonic() - start:.1f} s: {error}")


main(sys.argv[1], sys.argv[2] == "agree")

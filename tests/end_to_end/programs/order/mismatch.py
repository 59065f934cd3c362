"""Hosts whose programs differ: every host must raise, by name, within the deadline."""

import sys
import time

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import jax_passing


def main(kind: str) -> None:
    start = time.monotonic()
    try:
        with jax_passing.init(deadline_s=6, warn_s=2, axis_name="d") as session:
            start = time.monotonic()
            odd = session.rank == 1
            mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
            shape = (8,) if kind == "shape" and odd else (4,)
            dtype = jnp.int32 if kind == "dtype" and odd else jnp.float32

            def body(a: jax.Array, b: jax.Array) -> jax.Array:
                if kind == "order" and odd:
                    y = jax_passing.psum(b, "d")
                    x = jax_passing.psum(a, "d")
                else:
                    x = jax_passing.psum(a, "d")
                    y = jax_passing.psum(b, "d")
                if kind == "count" and odd:
                    x = x + jax_passing.psum(x + 1, "d")
                return x.sum() + y.sum() * 2

            step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False))
            a = jnp.ones(shape, dtype)
            print("value", step(a, 3 * a))
    except jax_passing.errors.PassingError as error:
        print(f"raised {type(error).__name__} after {time.monotonic() - start:.1f} s: {error}")


main(sys.argv[1])

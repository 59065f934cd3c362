"""Sums until something breaks; says what it got, then joins another job and goes on."""

import os
import sys
import time

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import jax_passing


def main(deadline_s: float) -> None:
    mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
    step = jax.jit(
        jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    )
    x = jnp.ones(100_000)
    last = time.monotonic()
    try:
        with jax_passing.init(deadline_s=deadline_s, warn_s=1, axis_name="d"):
            for i in range(10**9):
                step(x).block_until_ready()
                last = time.monotonic()
                if i == 20:
                    print(f"running as process {os.getpid()}")
    except jax_passing.errors.PassingError as error:
        print(f"raised {type(error).__name__} after {time.monotonic() - last:.1f} s: {error}")
        print(f"ranks {getattr(error, 'ranks', None)}")
    # The process goes on: alone, as a new job at the switch that is named next, or without one.
    switch = os.environ.get("NEXT_SWITCH")
    os.environ.pop("JAX_PASSING_SWITCH")
    with jax_passing.init(
        switch=switch, job=f"alone-{os.environ['JAX_PASSING_RANK']}", rank=0, world_size=1, axis_name="d"
    ):
        print("went on with", float(step(x)[0]))


main(float(sys.argv[1]))

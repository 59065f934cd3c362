"""Measures the cost of a 1 KB sum in a jitted JAX call, beside the same program with a local operation instead.

    jax-passing run --hosts 4 --devices-per-host 1 benchmarks/micro/call_overhead.py

The difference is the whole sum; `transport_benchmark 4 float32 1024` shows the collective alone, without JAX,
so the rest is what the call adds: the handler, the hand-over of the result to XLA, and XLA's wake-up of Python.

Measured on two busy cores: 270-325 us in all at H=4, where the collective alone takes 92-126, so the call adds about
180 us, of which waiting for a core was not told apart. Nothing was predicted.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_passing


def median_us(step: Callable[[jax.Array], jax.Array], x: jax.Array, calls: int) -> float:
    """Median time of one call, its result awaited."""
    times_us = []
    for _ in range(calls):
        start_s = time.perf_counter()
        step(x).block_until_ready()
        times_us.append((time.perf_counter() - start_s) * 1e6)
    return statistics.median(times_us)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--calls", type=int, default=3000)
    arguments = parser.parse_args()
    with jax_passing.init(axis_name="d") as session:
        mesh = jax.sharding.Mesh(jax.local_devices()[:1], ("d",))
        x = jax.device_put(np.ones((1, arguments.bytes // 4), np.float32), NamedSharding(mesh, P("d")))

        def jitted(operation: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
            return jax.jit(jax.shard_map(operation, mesh=mesh, in_specs=P("d"), out_specs=P("d")))

        def over_hosts(x: jax.Array) -> jax.Array:
            return jax.lax.pcast(jax_passing.psum(x, "d"), "d", to="varying")

        local, summed = jitted(lambda x: x * 2), jitted(over_hosts)
        for step in (local, summed):
            median_us(step, x, 100)  # compiles, learns the order
        local_us = median_us(local, x, arguments.calls)
        summed_us = median_us(summed, x, arguments.calls)
        if session.rank == 0:
            print(f"{session.world_size} hosts, {arguments.bytes} B: psum {summed_us:.1f} us, local {local_us:.1f} us")


main()

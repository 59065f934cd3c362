"""One float32 psum between hosts, beside `lax.psum` over gloo in the same processes.

    jax-passing run --hosts 2 --devices-per-host 1 benchmarks/beside_gloo.py --mebibytes 64

Both sum the same array on one mesh over all hosts, in turns; every result is checked. On one machine both move their
bytes through memory, so this compares software costs, not networks.
"""

import argparse
import os
import statistics
import time

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_passing


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mebibytes", type=float, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--coordinator", default="127.0.0.1:47613", help="a free port of host 0, for gloo")
    arguments = parser.parse_args()

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    rank, world_size = int(os.environ["JAX_PASSING_RANK"]), int(os.environ["JAX_PASSING_WORLD_SIZE"])
    jax.distributed.initialize(arguments.coordinator, num_processes=world_size, process_id=rank)
    with jax_passing.init() as session:
        elements = int(arguments.mebibytes * 2**20 / 4)
        mesh = jax.sharding.Mesh(jax.devices(), ("d",))
        shape = (jax.device_count(), elements)
        x = jax.make_array_from_callback(
            shape, NamedSharding(mesh, P("d")), lambda index: np.full((1, elements), 1.0 + index[0].start, np.float32)
        )
        expected = sum(range(1, jax.device_count() + 1))
        contenders = {"jax_passing.psum": jax_passing.psum, "lax.psum (gloo)": jax.lax.psum}
        steps = {
            name: jax.jit(
                jax.shard_map(lambda x, psum=psum: psum(x[0], "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
            )
            for name, psum in contenders.items()
        }
        times: dict[str, list[float]] = {name: [] for name in steps}
        for round_number in range(arguments.rounds + 2):  # the first two compile and learn the order
            for name, step in steps.items():
                start_s = time.perf_counter()
                out = step(x).block_until_ready()
                if round_number >= 2:
                    times[name].append(time.perf_counter() - start_s)
                np.testing.assert_allclose(out.addressable_data(0), expected, rtol=1e-6)
        if rank == 0:
            for name, seconds in times.items():
                median_s = statistics.median(seconds)
                print(
                    f"{name:18} {arguments.mebibytes:g} MiB on {world_size} hosts: median {median_s:.4f} s "
                    f"(min {min(seconds):.4f}, max {max(seconds):.4f}), {elements * 4 / median_s / 1e9:.2f} GB/s"
                )
            print(session.stats())


main()

"""Times a small sum alone, and while a large one is on its way, on a star of rate-limited links.

sudo python benchmarks/star/small_beside_large.py --hosts 2 --gbit 1
"""

import argparse
import os
import statistics
import sys
import threading
import time

from star_network import StarNetwork

PORT = 47100
ROUNDS = 7
PAUSE_S = 0.1  # after which the large sum is on its way everywhere


def work(mebibytes: float) -> None:
    """One host; rank 0 prints."""
    import jax
    from jax.sharding import PartitionSpec as P

    import jax_passing

    with jax_passing.init(axis_name="d") as session:
        mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))

        def psum_of(elements):
            f = jax.jit(jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))
            x = jax.numpy.ones((1, elements))
            return lambda: f(x).block_until_ready()

        large, small = psum_of(int(mebibytes * 2**18)), psum_of(256)

        def timed(f):
            start_s = time.perf_counter()
            f()
            return time.perf_counter() - start_s

        for _ in range(3):
            large(), small()
        large_s = [timed(large) for _ in range(3)]
        alone_s = [timed(small) for _ in range(50)]
        beside_s = []
        for _ in range(ROUNDS):
            small()
            thread = threading.Thread(target=large)  # a thread's own executions take turns
            thread.start()
            time.sleep(PAUSE_S)
            beside_s.append(timed(small))
            assert thread.is_alive(), "the large sum was over before"
            thread.join()
        if session.rank == 0:
            print(
                f"large sum alone {statistics.median(large_s) * 1e3:.1f} ms; small sum alone "
                f"{statistics.median(alone_s) * 1e3:.2f} ms, beside it {statistics.median(beside_s) * 1e3:.2f} ms "
                f"(min {min(beside_s) * 1e3:.2f}, max {max(beside_s) * 1e3:.2f})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--gbit", type=float, default=1.0)
    parser.add_argument("--mebibytes", type=float, default=64.0, help="of the large sum")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        return work(arguments.mebibytes)
    with StarNetwork(arguments.hosts, arguments.gbit) as star:
        job = {
            "JAX_PASSING_SWITCH": star.serve(PORT),
            "JAX_PASSING_JOB": "small_beside_large",
            "JAX_PASSING_WORLD_SIZE": str(arguments.hosts),
        }
        environment = {**os.environ, **job, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
        ranks = [
            star.start(
                rank,
                [sys.executable, __file__, *sys.argv[1:], "--work"],
                env=environment | {"JAX_PASSING_RANK": str(rank)},
            )
            for rank in range(arguments.hosts)
        ]
        sys.exit(max(rank.wait(120) != 0 for rank in ranks))


if __name__ == "__main__":
    main()

"""How much of the time that gradients travel is hidden behind the backward pass, on a star of rate-limited links.

    sudo python benchmarks/overlap.py --hosts 2 --gbit 0.5

A deep Flax MLP is trained in data parallel, four ways that take turns: without communication; with jax_passing.psum
over the gradients, in one jitted step; the same in two jitted programs, one for the gradients and one for their sums,
so that nothing overlaps; with lax.psum over gloo, in one jitted step. The parameters that the ways arrive at are
compared. Choose the rate and the batch such that communication and computation take about equally long.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from star_network import StarError, StarNetwork

WAYS = ("alone", "overlap", "two programs", "gloo")
PORT = 47100
WARM_UPS = 3  # they compile, and learn the order of sums

NOTE = """
alone: the step without communication. two programs: gradients, then their sums and the update; so communication takes
(two programs - alone). hidden: (two programs - overlap) / the smaller of computation and communication. It can't reach
100 %: sums start with the backward pass, after the forward pass, and the last bucket's sum starts when all else is
over."""


def build(arguments: argparse.Namespace) -> tuple[Any, Any, dict[str, Any]]:
    """The first parameters, the batch of this host, and a function (parameters, batch) -> parameters for each way."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    import jax_passing

    class Mlp(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(arguments.depth):
                x = x + nn.relu(nn.Dense(arguments.width)(x)) / arguments.depth
            return x

    model, optimizer = Mlp(), optax.sgd(1e-3)
    mesh = jax.sharding.Mesh(jax.devices(), ("d",))
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))
    shape = (jax.device_count() * arguments.batch, arguments.width)
    noise = np_noise(shape)
    batch = jax.make_array_from_callback(shape, split, lambda index: noise[index])
    params = jax.jit(lambda: model.init(jax.random.key(0), jnp.zeros((1, arguments.width))), out_shardings=everywhere)()

    def gradients(params, batch):
        def loss(params):
            return jnp.mean((model.apply(params, batch) - jnp.roll(batch, 1, axis=1)) ** 2)

        return jax.grad(loss)(jax.lax.pcast(params, "d", to="varying"))

    def update(params, sums):
        grads = jax.tree.map(lambda g: g / jax.device_count(), sums)
        return optax.apply_updates(params, optimizer.update(grads, optimizer.init(params))[0])

    def passing(grads):
        return jax_passing.psum(grads, "d", bucket_bytes=int(arguments.bucket_mebibytes * 2**20))

    def step(sum_of):
        return lambda params, batch: update(params, sum_of(gradients(params, batch)))

    def mapped(f, in_specs, out_specs, check_vma=True, **options):
        return jax.jit(
            jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma), **options
        )

    here, there = P(), P("d")
    grads_alone = mapped(
        lambda params, batch: jax.tree.map(lambda g: g[None], gradients(params, batch)), (here, there), there
    )
    sum_alone = mapped(
        lambda params, grads: update(params, passing(jax.tree.map(lambda g: g[0], grads))),
        (here, there),
        here,
        donate_argnums=(0, 1),
    )
    steps = {
        "alone": mapped(step(lambda grads: grads), (here, there), here, check_vma=False, donate_argnums=0),
        "overlap": mapped(step(passing), (here, there), here, donate_argnums=0),
        "two programs": lambda params, batch: sum_alone(params, jax.block_until_ready(grads_alone(params, batch))),
        "gloo": mapped(step(lambda grads: jax.lax.psum(grads, "d")), (here, there), here, donate_argnums=0),
    }
    return params, batch, steps


def np_noise(shape: tuple[int, int]) -> Any:
    import numpy as np

    return np.random.default_rng(0).standard_normal(shape, np.float32)


def work(arguments: argparse.Namespace) -> None:
    """One host."""
    import jax
    import numpy as np

    import jax_passing

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(arguments.coordinator, num_processes=arguments.ranks, process_id=arguments.rank)
    with jax_passing.init(rank=arguments.rank, world_size=arguments.ranks) as session:
        params, batch, steps = build(arguments)
        states = {way: jax.tree.map(jax.numpy.copy, params) for way in arguments.ways}
        times_s: dict[str, list[float]] = {way: [] for way in arguments.ways}
        for turn in range(-WARM_UPS, arguments.steps):
            for way in arguments.ways:
                if arguments.trace and arguments.rank == 0 and turn == arguments.steps - 1:
                    jax.profiler.start_trace(f"{arguments.trace}/{way.replace(' ', '_')}")
                start_s = time.perf_counter()
                states[way] = jax.block_until_ready(steps[way](states[way], batch))
                seconds = time.perf_counter() - start_s
                if arguments.trace and arguments.rank == 0 and turn == arguments.steps - 1:
                    jax.profiler.stop_trace()
                if turn >= 0:
                    times_s[way].append(seconds)
        finals = {way: [np.asarray(x.addressable_data(0)) for x in jax.tree.leaves(states[way])] for way in states}
        summed = [way for way in arguments.ways if way != "alone"]
        assert all(np.isfinite(x).all() for way in finals for x in finals[way])  # NaN and infinities travel twice
        for way in summed:
            for x, right in zip(finals[way], finals[summed[0]], strict=True):
                np.testing.assert_allclose(x, right, rtol=1e-4, atol=1e-5, err_msg=f"{way} beside {summed[0]}")
        leaves = [x.nbytes for x in jax.tree.leaves(params)]
        stats = session.stats()
    if arguments.rank == 0:
        result = {"times_s": times_s, "size_bytes": sum(leaves), "stats": stats}
        Path(arguments.result).write_text(json.dumps(result))


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Builds the star, runs the hosts, returns what rank 0 found."""
    with StarNetwork(arguments.hosts, arguments.gbit) as star:
        result = star.folder / "result.json"
        job = {"JAX_PASSING_SWITCH": star.serve(PORT), "JAX_PASSING_JOB": "overlap"}
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", **job}
        flags = ["--ranks", str(arguments.hosts), "--coordinator", f"{star.address(0)}:{PORT + 1}"]
        hosts = [
            star.start(
                rank,
                [sys.executable, __file__, *sys.argv[1:], "--rank", str(rank), "--result", str(result), *flags],
                env=environment,
            )
            for rank in range(arguments.hosts)
        ]
        for rank, host in enumerate(hosts):
            if host.wait(arguments.timeout_s) != 0:
                raise StarError(f"rank {rank} failed; its messages are above.")
        content: dict[str, Any] = json.loads(result.read_text())
        return content


def show(arguments: argparse.Namespace, result: dict[str, Any], console: Console) -> None:
    median_s = {way: statistics.median(times_s) for way, times_s in result["times_s"].items()}
    title = (
        f"{arguments.hosts} hosts, links of {arguments.gbit:g} Gbit/s, {result['size_bytes'] / 2**20:.0f} MiB of "
        f"gradients in buckets of {arguments.bucket_mebibytes:g} MiB"
    )
    table = Table("step", "median (s)", "min (s)", "max (s)", title=title, box=box.SIMPLE)
    for way, times_s in result["times_s"].items():
        table.add_row(way, f"{median_s[way]:.3f}", f"{min(times_s):.3f}", f"{max(times_s):.3f}")
    console.print(table)
    if {"alone", "overlap", "two programs"} <= median_s.keys():
        computation_s = median_s["alone"]
        communication_s = median_s["two programs"] - computation_s
        hidden = (median_s["two programs"] - median_s["overlap"]) / min(computation_s, communication_s)
        console.print(
            f"computation {computation_s:.3f} s, communication {communication_s:.3f} s, hidden {hidden:.0%}",
            highlight=False,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--hosts", type=int, default=2)
    add("--gbit", type=float, default=0.5, help="rate of every link in each direction")
    add("--depth", type=int, default=16, help="layers")
    add("--width", type=int, default=1024, help="of a layer, which has width x width parameters")
    add("--batch", type=int, default=1600, help="rows of a host")
    add("--bucket-mebibytes", type=float, default=25.0, help="argument of psum")
    add("--steps", type=int, default=5, help="of each way, in turns")
    add("--ways", type=lambda text: text.split(","), default=list(WAYS), help=f"of {','.join(WAYS)}")
    add("--trace", metavar="FOLDER", help="writes rank 0's last step of each way for Perfetto")
    add("--json", metavar="PATH", help="writes every time")
    add("--timeout-s", type=float, default=300.0)
    add("--rank", type=int, help=argparse.SUPPRESS)
    add("--ranks", type=int, help=argparse.SUPPRESS)
    add("--coordinator", help=argparse.SUPPRESS)
    add("--result", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        return work(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        result = run(arguments)
    except (StarError, subprocess.TimeoutExpired) as error:
        sys.exit(f"overlap.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    show(arguments, result, console)
    console.print(NOTE, highlight=False)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"options": vars(arguments), **result}, indent=1))
    return None


if __name__ == "__main__":
    main()

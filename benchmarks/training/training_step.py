"""A step of data-parallel training with and without overlap, measured on a star of rate-limited links and predicted.

    sudo python benchmarks/training/training_step.py --model gpt2

A model is trained in several ways, which take turns: without communication; with jax_passing.overlap, whose sums run
beside the backward pass, in one jitted step; with the gradients in one program and their sums in another, so that
nothing overlaps; and, if it is asked for, with lax.psum over gloo in one jitted step. The parameters that the ways
arrive at are compared. Beside the times that were measured stand those that jax_passing.simulate predicts from how long
the model's stages take.

Each host has a core of its own, as long as there are enough. The rate of the links follows from the time that a step
takes without communication, so that sums at line rate take --ratio times as long; or it is given.
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

sys.path.append(str(Path(__file__).parents[1] / "star"))

from rich import box
from rich.console import Console
from rich.table import Table
from star_network import StarError, StarNetwork

from jax_passing.predict.constants import UDP_WIRE_BYTES_PER_BYTE

WAYS = ("alone", "overlap", "two programs", "gloo")
PORT = 47100
WARM_UPS = 3  # they compile, and learn the order of sums
REFERENCE_STEPS = 5  # to choose the rate by

# Speed-ups by overlap of Xu et al. (Computer Science 2024(12), 120-128), by the paper's abstract, on other machines.
PAPER = {"gpt2": "1.14-1.23 on 6 nodes", "alexnet": "1.31", "vgg16": "1.14", "resnet50": "1.03"}

NOTE = """
alone: the step without communication. two programs: gradients, then their sums and the update, so communication takes
(two programs - alone). hidden: (two programs - overlap) / the smaller of computation and communication. It can't reach
100 %: sums start with the backward pass, after the forward pass, and the last bucket's sum starts when all else is
over."""


def build(arguments: argparse.Namespace) -> tuple[Any, Any, Any, dict[str, Any]]:
    """The model, the first parameters, the batch, and a function (parameters, batch) -> parameters for each way."""
    import jax
    import optax
    from benchmark_models import small
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    import jax_passing

    model, optimizer = small(arguments.model), optax.sgd(1e-3)
    bucket_bytes = int(arguments.bucket_mebibytes * 2**20)
    mesh = jax.sharding.Mesh(jax.devices(), ("d",))
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))
    own = model.batch(arguments.rows or model.rows, arguments.rank)
    batch = jax.tree.map(lambda array: jax.make_array_from_process_local_data(split, array), own)
    params = jax.jit(model.init, out_shardings=everywhere)()

    def gradients(params: Any, batch: Any) -> Any:
        return jax.grad(model.loss)(jax.lax.pcast(params, "d", to="varying"), batch)

    def update(params: Any, sums: Any) -> Any:
        grads = jax.tree.map(lambda g: g / jax.device_count(), sums)
        return optax.apply_updates(params, optimizer.update(grads, optimizer.init(params))[0])

    def overlapping(params: Any, batch: Any) -> Any:
        _, grads = jax_passing.overlap(model.loss, "d", bucket_bytes=bucket_bytes)(params, batch)
        return optax.apply_updates(params, optimizer.update(grads, optimizer.init(params))[0])

    def mapped(f: Any, in_specs: Any, out_specs: Any, check_vma: bool = True, **options: Any) -> Any:
        return jax.jit(
            jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma), **options
        )

    here, there = P(), P("d")
    grads_alone = mapped(
        lambda params, batch: jax.tree.map(lambda g: g[None], gradients(params, batch)), (here, there), there
    )
    sum_alone = mapped(
        lambda params, grads: update(
            params, jax_passing.psum(jax.tree.map(lambda g: g[0], grads), "d", bucket_bytes=bucket_bytes)
        ),
        (here, there),
        here,
        donate_argnums=(0, 1),
    )

    def step(sum_of: Any, check_vma: bool = True) -> Any:
        def body(params: Any, batch: Any) -> Any:
            return update(params, sum_of(gradients(params, batch)))

        return mapped(body, (here, there), here, check_vma, donate_argnums=0)

    steps = {
        "alone": step(lambda grads: grads, check_vma=False),
        "overlap": mapped(overlapping, (here, there), here, donate_argnums=0),
        "two programs": lambda params, batch: sum_alone(params, jax.block_until_ready(grads_alone(params, batch))),
        "update": mapped(lambda params, batch: update(params, params), (here, there), here, donate_argnums=0),
        "gloo": step(lambda grads: jax.lax.psum(grads, "d")),
    }
    return model, params, batch, steps


def time_of(step: Any, state: Any, batch: Any) -> tuple[Any, float]:
    import jax

    start_s = time.perf_counter()
    state = jax.block_until_ready(step(state, batch))
    return state, time.perf_counter() - start_s


def fastest_s(step: Any, params: Any, batch: Any) -> float:
    """Others' load on the machine only adds to it."""
    import jax

    state, times_s = jax.tree.map(jax.numpy.copy, params), []
    for _ in range(1 + REFERENCE_STEPS):  # the first one compiles
        state, seconds = time_of(step, state, batch)
        times_s.append(seconds)
    return min(times_s[1:])


def agree_on_rate(alone_s: float, params: Any) -> float:
    """Rank 0 says how long a step takes by itself; the one who builds the star answers with the rate of its links."""
    import jax

    print(json.dumps({"alone_s": alone_s, "size_bytes": sum(leaf.nbytes for leaf in jax.tree.leaves(params))}))
    sys.stdout.flush()
    return float(input())


def predicted_s(plan: Any, update_s: float, arguments: argparse.Namespace, gbit: float) -> dict[str, float]:
    """Predicts a step's time for each way. The simulator leaves out the optimiser's update, which takes `update_s`."""
    from jax_passing import simulate
    from jax_passing.pipelining.schedules import interleaved
    from jax_passing.predict.cluster import Cluster

    cluster = Cluster(hosts=arguments.hosts, link_gbit=gbit, shared_cores=len(os.sched_getaffinity(os.getppid())))
    schedule = interleaved(1, 1, len(plan.stages))
    bucket_bytes = int(arguments.bucket_mebibytes * 2**20)
    together = simulate(plan, schedule, cluster, bucket_bytes=bucket_bytes)
    apart = simulate(plan, schedule, cluster, bucket_bytes=bucket_bytes, overlap=False)
    times_s = {"alone": together.compute_s, "overlap": together.time_s, "two programs": apart.time_s}
    return {way: time_s + update_s for way, time_s in times_s.items()}


def work(arguments: argparse.Namespace) -> None:
    """One host."""
    cores = sorted(os.sched_getaffinity(0))
    if arguments.hosts <= len(cores):
        os.sched_setaffinity(0, {cores[arguments.rank]})
    import jax
    import numpy as np

    import jax_passing

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(arguments.coordinator, num_processes=arguments.hosts, process_id=arguments.rank)
    model, params, batch, steps = build(arguments)
    # All hosts measure at the same time, as they compute at the same time.
    local = [jax.tree.map(lambda array: array.addressable_data(0), tree) for tree in (params, batch)]
    plan = jax_passing.partition(model.loss, *local, stages=arguments.stages, cost="measure", max_live=8)
    update_s, alone_s = (fastest_s(steps[name], params, batch) for name in ("update", "alone"))
    gbit = agree_on_rate(alone_s, params) if arguments.rank == 0 else 0.0
    with jax_passing.init(rank=arguments.rank, world_size=arguments.hosts) as session:
        states = {way: jax.tree.map(jax.numpy.copy, params) for way in arguments.ways}
        times_s: dict[str, list[float]] = {way: [] for way in arguments.ways}
        for turn in range(-WARM_UPS, arguments.steps):
            for way in arguments.ways:
                states[way], seconds = time_of(steps[way], states[way], batch)
                if turn >= 0:
                    times_s[way].append(seconds)
        finals = {way: [np.asarray(x.addressable_data(0)) for x in jax.tree.leaves(states[way])] for way in states}
        summed = [way for way in arguments.ways if way != "alone"]
        assert all(np.isfinite(x).all() for way in finals for x in finals[way])  # NaN and infinities travel twice
        for way in summed:
            for x, right in zip(finals[way], finals[summed[0]], strict=True):
                np.testing.assert_allclose(x, right, rtol=1e-4, atol=1e-5, err_msg=f"{way} beside {summed[0]}")
        stats = session.stats()
    if arguments.rank == 0:
        predictions = predicted_s(plan, update_s, arguments, gbit)
        result = {"times_s": times_s, "predicted_s": predictions, "update_s": update_s, "stats": stats}
        Path(arguments.result).write_text(json.dumps(result))


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Builds the star, runs the hosts, returns what rank 0 found."""
    with StarNetwork(arguments.hosts, gbit=0) as star:
        result = star.folder / "result.json"
        job = {"JAX_PASSING_SWITCH": star.serve(PORT), "JAX_PASSING_JOB": "training-step"}
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", **job}
        flags = ["--result", str(result), "--coordinator", f"{star.address(0)}:{PORT + 1}"]
        hosts = [
            star.start(
                rank,
                [sys.executable, __file__, *sys.argv[1:], "--rank", str(rank), *flags],
                env=environment,
                **({"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True} if rank == 0 else {}),
            )
            for rank in range(arguments.hosts)
        ]
        assert hosts[0].stdin is not None
        assert hosts[0].stdout is not None
        line = hosts[0].stdout.readline()
        if not line:
            raise StarError("rank 0 failed; its messages are above.")
        first = json.loads(line)
        wire_bits = first["size_bytes"] * UDP_WIRE_BYTES_PER_BYTE * 8
        gbit = arguments.gbit or wire_bits / (arguments.ratio * first["alone_s"]) / 1e9
        star.shape(gbit)
        print(gbit, file=hosts[0].stdin, flush=True)
        for rank, host in enumerate(hosts):
            if host.wait(arguments.timeout_s) != 0:
                raise StarError(f"rank {rank} failed; its messages are above.")
        content: dict[str, Any] = json.loads(result.read_text())
        return {**content, "size_bytes": first["size_bytes"], "gbit": gbit, "wire_s": wire_bits / gbit / 1e9}


def show(arguments: argparse.Namespace, result: dict[str, Any], console: Console) -> None:
    best_s = {way: min(times_s) for way, times_s in result["times_s"].items()}
    predicted = result["predicted_s"]
    title = (
        f"{arguments.model}: {arguments.hosts} hosts, links of {result['gbit']:.3f} Gbit/s, "
        f"{result['size_bytes'] / 2**20:.1f} MiB of gradients ({result['size_bytes'] / 4e6:.1f} M parameters) in "
        f"buckets of {arguments.bucket_mebibytes:g} MiB"
    )
    columns = ("step", "fastest (s)", "median (s)", "slowest (s)", "predicted (s)", "off")
    table = Table(*columns, title=title, box=box.SIMPLE)
    for way, times_s in result["times_s"].items():
        known = way in predicted
        table.add_row(
            way,
            *(f"{seconds:.3f}" for seconds in (best_s[way], statistics.median(times_s), max(times_s))),
            f"{predicted[way]:.3f}" if known else "",
            f"{predicted[way] / best_s[way] - 1:+.1%}" if known else "",
        )
    console.print(table)
    if {"alone", "overlap", "two programs"} <= best_s.keys():
        computation_s = best_s["alone"]
        communication_s = best_s["two programs"] - computation_s
        hidden = (best_s["two programs"] - best_s["overlap"]) / min(computation_s, communication_s)
        console.print(
            f"computation {computation_s:.3f} s, communication {communication_s:.3f} s (at line rate "
            f"{result['wire_s']:.3f} s), hidden {hidden:.0%}\n"
            f"two programs / overlap: measured {best_s['two programs'] / best_s['overlap']:.2f}, "
            f"predicted {predicted['two programs'] / predicted['overlap']:.2f}"
            + (f"; the paper's, on other machines: {PAPER[arguments.model]}" if arguments.model in PAPER else ""),
            highlight=False,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", choices=("mlp", "gpt2", "alexnet", "vgg16", "resnet50"), default="gpt2")
    add("--hosts", type=int, default=2)
    add("--ratio", type=float, default=1.0, help="of communication, at line rate, to computation")
    add("--gbit", type=float, help="rate of every link in each direction, instead of the one that has this ratio")
    add("--rows", type=int, help="of a host's batch")
    add("--stages", type=int, default=6, help="that are timed one by one for the prediction")
    add("--bucket-mebibytes", type=float, default=4.0, help="of the sums")
    add("--steps", type=int, default=10, help="of each way, in turns")
    add("--ways", type=lambda text: text.split(","), default=list(WAYS[:-1]), help=f"of {','.join(WAYS)}")
    add("--json", metavar="PATH", help="writes every time")
    add("--timeout-s", type=float, default=600.0)
    add("--rank", type=int, help=argparse.SUPPRESS)
    add("--coordinator", help=argparse.SUPPRESS)
    add("--result", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        return work(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        result = run(arguments)
    except (StarError, subprocess.TimeoutExpired) as error:
        sys.exit(f"training_step.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    show(arguments, result, console)
    console.print(NOTE, highlight=False)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"options": vars(arguments), **result}, indent=1))
    return None


if __name__ == "__main__":
    main()

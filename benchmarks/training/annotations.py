"""A step of GPT-2 whose collectives jit puts in by annotations, over gloo and over our switch, on a star of links.

    sudo python benchmarks/training/annotations.py --hosts 2 --gbit 1

The program knows nothing of jax_passing. Its arrays carry a NamedSharding: the batch is split over all hosts, and the
parameters lie on each host (data), or are split over them as well (fsdp). It runs as two groups of processes, of which
the variables of docs/train/any_program.md send one through the switch. Both groups take turns, and their losses are
compared.
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

from jax_passing.for_jax import environment

PORT = 47200
GROUPS = ("gloo", "switch")
WAYS = ("data", "fsdp")
END_S = 60.0
WARM_UPS = 2  # they compile, make the groups of devices, and learn the order of sums


def sent_bytes() -> int:
    """Counts the bytes that this host's network cards have sent, with headers."""
    lines = (line.split(":") for line in Path("/proc/self/net/dev").read_text().splitlines()[2:])
    return sum(int(counts.split()[8]) for name, counts in lines if name.strip() != "lo")


def work(arguments: argparse.Namespace) -> None:
    """One host. It makes a step in the way that each line of its input names."""
    import jax
    import numpy as np
    import optax
    from benchmark_models import small
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    jax.distributed.initialize(arguments.coordinator, num_processes=arguments.hosts, process_id=arguments.rank)
    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    model = small("gpt2")
    optimizer = optax.sgd(1e-3, momentum=0.9)

    def shared(leaf: Any) -> NamedSharding:
        """Splits a leaf's first axis that the number of devices divides."""
        axes = [axis for axis, length in enumerate(leaf.shape) if length % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "d") if axes else P())

    def start() -> Any:
        params = model.init()
        return params, optimizer.init(params)

    def placed(shape: Any, sharding: NamedSharding) -> jax.Array:
        """Draws a leaf by numpy: on four hosts it takes a minute to compile the model's own start."""
        numbers = 0.02 * np.random.default_rng(0).standard_normal(shape.shape, shape.dtype)
        return jax.make_array_from_callback(shape.shape, sharding, lambda index: numbers[index])

    def step(state: Any, batch: Any) -> Any:
        params, momentum = state
        loss, gradients = jax.value_and_grad(model.loss)(params, batch)
        updates, momentum = optimizer.update(gradients, momentum)
        return (optax.apply_updates(params, updates), momentum), loss

    shapes = jax.eval_shape(start)
    placements = {
        "data": jax.tree.map(lambda _: NamedSharding(mesh, P()), shapes),
        "fsdp": jax.tree.map(shared, shapes),
    }
    states = {way: jax.tree.map(placed, shapes, placement) for way, placement in placements.items()}
    whole = NamedSharding(mesh, P())
    steps = {
        way: jax.jit(step, out_shardings=(placement, whole), donate_argnums=0) for way, placement in placements.items()
    }
    own = model.batch(arguments.rows, arguments.rank)
    split = NamedSharding(mesh, P("d"))
    batch = jax.tree.map(lambda x: jax.make_array_from_process_local_data(split, x), own)
    size = sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes[0]))
    print(json.dumps({"size_bytes": size}), flush=True)
    for line in sys.stdin:
        way = line.strip()
        sent, start_s = sent_bytes(), time.perf_counter()
        states[way], loss = jax.block_until_ready(steps[way](states[way], batch))
        seconds = time.perf_counter() - start_s
        print(json.dumps({"time_s": seconds, "sent": sent_bytes() - sent, "loss": float(loss)}), flush=True)


def reply(processes: list[subprocess.Popen[Any]], order: str | None = None) -> list[dict[str, Any]]:
    """Gives each host an order, if there is one, and returns what they answer."""
    for process in processes if order is not None else ():
        assert process.stdin is not None
        print(order, file=process.stdin, flush=True)
    replies = []
    for rank, process in enumerate(processes):
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("{")), None)  # gloo prints lines of its own
        if line is None:
            raise StarError(f"rank {rank} failed; its messages are above")
        replies.append(json.loads(line))
    return replies


def take_turns(
    groups: dict[str, list[subprocess.Popen[Any]]], steps: dict[tuple[str, str], list[dict[str, float]]], count: int
) -> None:
    """Has each group carry out `count` steps in each way of `steps`, in turns; adds what the slowest host, or the one
    that sent most, says of each. Ends the processes."""
    for _ in range(count):
        for group, way in steps:
            hosts = reply(groups[group], way)
            steps[group, way].append({key: max(host[key] for host in hosts) for key in hosts[0]})
    processes = [process for group in groups.values() for process in group]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()  # so it ends
    ends = [process.wait(END_S) for process in processes]
    if any(ends):
        raise StarError("a rank failed at its end; its messages are above")


def run(arguments: argparse.Namespace) -> tuple[int, dict[tuple[str, str], list[dict[str, float]]]]:
    """Returns the size of the gradients, and the steps of each group in each way."""
    with StarNetwork(arguments.hosts, arguments.gbit) as star:
        job = {"JAX_PASSING_SWITCH": star.serve(PORT), "JAX_PASSING_JOB": "annotations"}
        groups = {}
        for number, group in enumerate(GROUPS):
            variables = {**job, **environment.variables()} if group == "switch" else {}
            coordinator = f"{star.address(0)}:{PORT + 1 + number}"
            groups[group] = [
                star.start(
                    rank,
                    [sys.executable, __file__, *sys.argv[1:], "--rank", str(rank), "--coordinator", coordinator],
                    env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", **variables},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for rank in range(arguments.hosts)
            ]
        ready = [reply(processes)[0] for processes in groups.values()]
        steps: dict[tuple[str, str], list[dict[str, float]]] = {(group, way): [] for way in WAYS for group in GROUPS}
        take_turns(groups, steps, WARM_UPS + arguments.steps)
    return ready[0]["size_bytes"], steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--hosts", type=int, default=2)
    add("--gbit", type=float, default=1.0, help="rate of every link in each direction; 0: not shaped")
    add("--rows", type=int, default=1, help="of a host's batch")
    add("--steps", type=int, default=10, help="of each group in each way, in turns")
    add("--rank", type=int, help=argparse.SUPPRESS)
    add("--coordinator", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        return work(arguments)
    try:
        size, steps = run(arguments)
    except (StarError, subprocess.TimeoutExpired) as error:
        sys.exit(f"annotations.py: {error}.")
    title = f"{arguments.hosts} hosts, {arguments.gbit:g} Gbit/s, parameters of {size / 2**20:.1f} MiB"
    table = Table("", "over", "fastest (s)", "median (s)", "sent (MiB)", "last loss", title=title, box=box.SIMPLE)
    for (group, way), all_steps in steps.items():
        measured = all_steps[WARM_UPS:]
        times_s = [step["time_s"] for step in measured]
        sent = statistics.median(step["sent"] for step in measured) / 2**20
        row = f"{min(times_s):.3f}", f"{statistics.median(times_s):.3f}", f"{sent:.1f}", f"{measured[-1]['loss']:.6f}"
        table.add_row(way, group, *row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    losses = [[step["loss"] for step in each] for each in steps.values()]
    if any(
        abs(loss - right) > 1e-3 * abs(right) for each in losses for loss, right in zip(each, losses[0], strict=True)
    ):
        sys.exit("annotations.py: the losses differ")
    return None


if __name__ == "__main__":
    main()

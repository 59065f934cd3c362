"""Steps of GPT-2 with Adam whose state is whole on each host, or in parts, by jax_passing and by JAX itself.

    sudo python benchmarks/training/sharding.py --hosts 2 --gbit 1

On a star of links three groups of processes take turns. One is a job of jax_passing, and trains with whole arrays
(plain), with the optimizer's state in parts (sharded), and with the parameters in parts as well, gathered as the
forward pass begins (gathered). The other two know nothing of jax_passing: their arrays carry a NamedSharding, the state
lies on each host (data) or is split over them (fsdp), and jit puts in the collectives. One of them goes over gloo, and
the variables of docs/train/any_program.md send the other through the switch. All losses are compared. The state's bytes
are those of the arrays that a host holds between two steps: parameters and Adam's moments.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "star"))

from rich import box
from rich.console import Console
from rich.table import Table
from star_network import StarError, StarNetwork

from jax_passing.for_jax import environment

PORT = 47250
BY_JIT = ("data", "fsdp")
WAYS = {"job": ("plain", "sharded", "gathered"), "gloo": BY_JIT, "switch": BY_JIT}  # by group
END_S = 60.0
WARM_UPS = 2  # they compile, make the groups of devices, and learn the order of sums
Step = Callable[[Any, Any], Any]  # (state, batch) to (state, loss)


def sent_bytes() -> int:
    """Counts the bytes that this host's network cards have sent, with headers."""
    lines = (line.split(":") for line in Path("/proc/self/net/dev").read_text().splitlines()[2:])
    return sum(int(counts.split()[8]) for name, counts in lines if name.strip() != "lo")


def numbers(shape: Any) -> Any:
    """Draws a parameter by numpy, alike in all groups: on four hosts it takes a minute to compile the model's own."""
    import numpy as np

    return 0.02 * np.random.default_rng(0).standard_normal(shape.shape, shape.dtype)


# Each of the following two returns, for each way, the state and the step.


def by_annotations(model: Any, optimizer: Any, own: Any, arguments: argparse.Namespace) -> dict[str, tuple[Any, Step]]:
    import jax
    import numpy as np
    import optax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    jax.distributed.initialize(arguments.coordinator, num_processes=arguments.hosts, process_id=arguments.rank)
    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def split(leaf: Any) -> NamedSharding:
        """Splits a leaf's first axis that the number of devices divides."""
        axes = [axis for axis, length in enumerate(leaf.shape) if length % mesh.size == 0]
        return NamedSharding(mesh, P(*[None] * axes[0], "d") if axes else P())

    def placed(values: Any, sharding: NamedSharding) -> jax.Array:
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    def step(state: Any, batch: Any) -> Any:
        params, inner = state
        loss, gradients = jax.value_and_grad(model.loss)(params, batch)
        updates, inner = optimizer.update(gradients, inner, params)
        return (optax.apply_updates(params, updates), inner), loss

    params = jax.eval_shape(model.init)
    shapes = params, jax.eval_shape(optimizer.init, params)
    whole = NamedSharding(mesh, P())
    placements = {"data": jax.tree.map(lambda _: whole, shapes), "fsdp": jax.tree.map(split, shapes)}
    values = jax.tree.map(numbers, shapes[0]), jax.tree.map(lambda each: np.zeros(each.shape, each.dtype), shapes[1])
    rows = NamedSharding(mesh, P("d"))
    batch = jax.tree.map(lambda x: jax.make_array_from_process_local_data(rows, x), own)
    steps: dict[str, tuple[Any, Step]] = {}
    for way, placement in placements.items():
        run = jax.jit(step, out_shardings=(placement, whole), donate_argnums=0)
        steps[way] = jax.tree.map(placed, values, placement), lambda state, _, run=run: run(state, batch)
    return steps


def by_jax_passing(model: Any, optimizer: Any, arguments: argparse.Namespace) -> dict[str, tuple[Any, Step]]:
    import jax
    import optax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    import jax_passing
    from jax_passing.optax import deal, gather, part_specs, sharded

    mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
    in_parts = sharded(optimizer, "d", mesh)

    def plain(state: Any, batch: Any) -> Any:
        params, inner = state
        loss, gradients = jax_passing.overlap(model.loss, "d")(params, batch)
        updates, inner = optimizer.update(gradients, inner, params)
        return (optax.apply_updates(params, updates), inner), loss

    def own_gradients(params: Any, batch: Any) -> Any:
        return jax.value_and_grad(model.loss)(jax.lax.pcast(params, "d", to="varying"), batch)

    def in_turn(state: Any, batch: Any) -> Any:
        given, inner = state  # the parameters, or parts of them
        loss, gradients = own_gradients(gather(given, "d"), batch)
        updates, inner = in_parts.update(gradients, inner, given)
        return (optax.apply_updates(given, updates), inner), jax_passing.pmean(loss, "d")

    params = jax.device_put(jax.tree.map(numbers, jax.eval_shape(model.init)), NamedSharding(mesh, P()))
    copied = jax.tree.map(lambda leaf: leaf.copy(), params)  # each way donates its own
    states = {
        "plain": (plain, (params, jax.device_put(optimizer.init(params), NamedSharding(mesh, P())))),
        "sharded": (in_turn, (copied, in_parts.init(params))),
        "gathered": (in_turn, (deal(params, "d", mesh), in_parts.init(params))),
    }
    steps: dict[str, tuple[Any, Step]] = {}
    for way, (step, state) in states.items():
        specs = part_specs(state, "d")
        mapped = jax.shard_map(step, mesh=mesh, in_specs=(specs, P("d")), out_specs=(specs, P()))
        steps[way] = state, jax.jit(mapped, donate_argnums=0)
    return steps


def serve(steps: dict[str, tuple[Any, Step]], batch: Any) -> None:
    """Makes a step in the way that each line of the input names."""
    import jax

    held = {
        way: sum(part.data.nbytes for leaf in jax.tree.leaves(state) for part in leaf.addressable_shards)
        for way, (state, _) in steps.items()
    }
    print(json.dumps(held), flush=True)
    states = {way: state for way, (state, _) in steps.items()}
    for line in sys.stdin:
        way = line.strip()
        sent, start_s = sent_bytes(), time.perf_counter()
        states[way], loss = jax.block_until_ready(steps[way][1](states[way], batch))
        seconds = time.perf_counter() - start_s
        print(json.dumps({"time_s": seconds, "sent": sent_bytes() - sent, "loss": float(loss)}), flush=True)


def work(arguments: argparse.Namespace) -> None:
    """Runs one host of one group."""
    import optax
    from benchmark_models import small

    import jax_passing

    model, optimizer = small("gpt2"), optax.adam(1e-3)
    own = model.batch(arguments.rows, arguments.rank)
    if arguments.group != "job":
        return serve(by_annotations(model, optimizer, own, arguments), own)
    with jax_passing.init(axis_name="d", rank=arguments.rank, world_size=arguments.hosts):
        return serve(by_jax_passing(model, optimizer, arguments), own)


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


def run(arguments: argparse.Namespace) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], list[Any]]]:
    """Returns the bytes of the state of each group in each way, and the steps."""
    with StarNetwork(arguments.hosts, arguments.gbit) as star:
        address, groups = star.serve(PORT), {}
        for number, group in enumerate(WAYS):
            variables = {"JAX_PASSING_SWITCH": address, "JAX_PASSING_JOB": f"sharding-{group}", "PYTHONHASHSEED": "0"}
            if group == "gloo":
                variables = {}
            elif group == "switch":
                variables |= environment.variables()
            own = ["--group", group, "--coordinator", f"{star.address(0)}:{PORT + 1 + number}"]
            groups[group] = [
                star.start(
                    rank,
                    [sys.executable, __file__, *sys.argv[1:], "--rank", str(rank), *own],
                    env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", **variables},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for rank in range(arguments.hosts)
            ]
        held = {
            (group, way): max(host[way] for host in hosts)
            for group, processes in groups.items()
            for hosts in [reply(processes)]
            for way in WAYS[group]
        }
        steps: dict[tuple[str, str], list[Any]] = {key: [] for key in held}
        take_turns(groups, steps, WARM_UPS + arguments.steps)
    return held, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--hosts", type=int, default=2)
    add("--gbit", type=float, default=1.0, help="rate of every link in each direction; 0: not shaped")
    add("--rows", type=int, default=1, help="of a host's batch")
    add("--steps", type=int, default=10, help="of each group in each way, in turns")
    add("--group", choices=WAYS, help=argparse.SUPPRESS)
    add("--rank", type=int, help=argparse.SUPPRESS)
    add("--coordinator", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        return work(arguments)
    try:
        held, steps = run(arguments)
    except (StarError, subprocess.TimeoutExpired) as error:
        sys.exit(f"sharding.py: {error}.")
    columns = ("", "over", "state (MiB)", "fastest (s)", "median (s)", "rows/s", "sent (MiB)", "last loss")
    table = Table(*columns, title=f"{arguments.hosts} hosts, {arguments.gbit:g} Gbit/s", box=box.SIMPLE)
    for (group, way), all_steps in steps.items():
        measured = all_steps[WARM_UPS:]
        median_s = statistics.median(step["time_s"] for step in measured)
        table.add_row(
            way,
            "psum" if group == "job" else group,
            f"{held[group, way] / 2**20:.1f}",
            f"{min(step['time_s'] for step in measured):.3f}",
            f"{median_s:.3f}",
            f"{arguments.hosts * arguments.rows / median_s:.1f}",
            f"{statistics.median(step['sent'] for step in measured) / 2**20:.1f}",
            f"{measured[-1]['loss']:.6f}",
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    losses = [[step["loss"] for step in each] for each in steps.values()]
    if any(abs(loss - own) > 1e-3 * abs(own) for each in losses for loss, own in zip(each, losses[0], strict=True)):
        sys.exit("sharding.py: the losses differ")
    return None


if __name__ == "__main__":
    main()

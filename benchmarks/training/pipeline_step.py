"""A step of a pipeline of two stages: predicted from its plan and measured, with the chosen cut and with those near it.

    python benchmarks/training/pipeline_step.py

A GPT-2 is cut in two by jax_passing.partition with times that are measured on one core. Two virtual devices on two
cores have a stage each. The same model is also cut a little before and behind, and steps of all these pipelines take
turns. Each one's fastest step is compared with what jax_passing.simulate predicts for its cut.
"""

import argparse
import os
import sys
import time
from dataclasses import replace
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false --xla_force_host_platform_device_count=2"

import jax
import numpy as np
from benchmark_models import gpt2, gpt2_of
from rich import box
from rich.console import Console
from rich.table import Table

import jax_passing
from jax_passing.partitioning.plan import Plan
from jax_passing.partitioning.stages import Slicer
from jax_passing.pipelining.schedules import one_f_one_b
from jax_passing.predict.cluster import Cluster

STAGES = 2


def bind(cores: set[int]) -> None:
    """All threads of this process, those of XLA among them."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def other_cuts(plan: Plan, count: int, apart: float) -> list[int]:
    """Returns the chosen position, and legal ones on either side: `count` in all, `apart` as shares of the work."""
    done = np.concatenate([[0.0], np.cumsum(plan._chain.compute_s)]) / plan._chain.compute_s.sum()
    legal = np.flatnonzero(plan._chain.may_cut)
    legal = legal[(legal > 0) & (legal < len(done) - 1)]
    wanted = done[plan._cuts[0]] + apart * np.arange(-count, count + 1)
    nearest = {int(legal[np.argmin(abs(done[legal] - share))]) for share in wanted}
    return sorted(nearest | set(plan._cuts))


def cut_at(plan: Plan, position: int) -> Plan:
    """The same model, cut there."""
    program, chain = plan.stages[0]._model, plan._chain
    shapes = plan.params_tree.unflatten(plan.params_shapes)
    slicer = Slicer(program, [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(shapes)])
    forward_share = sum(facts.forward_s for facts in plan.facts) / sum(facts.compute_s for facts in plan.facts)
    stages, facts = [], []
    for first, last, own in ((0, position, plan.facts[0]), (position, len(slicer.chain), plan.facts[1])):
        stages.append(slicer.stage(first, last))
        compute_s = float(chain.compute_s[first:last].sum())
        facts.append(replace(own, compute_s=compute_s, forward_s=forward_share * compute_s))
    return replace(plan, stages=tuple(stages), facts=tuple(facts), _cuts=(position,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--layers", type=int, default=8)
    add("--width", type=int, default=384)
    add("--rows", type=int, default=2, help="of a microbatch, 128 tokens each")
    add("--microbatches", type=int, default=8)
    add("--cuts", type=int, default=3, help="on each side of the chosen one")
    add("--apart", type=float, default=0.02, help="of neighbouring cuts, as a share of the work")
    add("--steps", type=int, default=20, help="of each pipeline, in turns")
    arguments = parser.parse_args()
    config = gpt2.Config(arguments.layers, arguments.width, arguments.width // 64, vocabulary=2048, context=128)
    trained = gpt2_of(config, arguments.rows)
    params = jax.jit(trained.init)()
    batch = trained.batch(arguments.rows * arguments.microbatches, 0)
    microbatch = trained.batch(arguments.rows, 0)
    cores = os.sched_getaffinity(0)
    bind({min(cores)})
    plan = jax_passing.partition(trained.loss, params, microbatch, stages=STAGES, cost="measure")
    bind(cores)
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(STAGES, 1), ("stage", "data"))
    plans = {position: cut_at(plan, position) for position in other_cuts(plan, arguments.cuts, arguments.apart)}
    steps: dict[int, tuple[Any, Any]] = {}
    for position, contender in plans.items():
        step = jax_passing.pipeline(contender, mesh, microbatches=arguments.microbatches, schedule="1f1b")
        steps[position] = step, step.place(params)
    times_s: dict[int, list[float]] = {position: [] for position in plans}
    for turn in range(-2, arguments.steps):
        for position, (step, placed) in steps.items():
            start_s = time.perf_counter()
            jax.block_until_ready(step(placed, batch))
            if turn >= 0:
                times_s[position].append(time.perf_counter() - start_s)
    show(plan, plans, times_s, arguments)


def show(plan: Plan, plans: dict[int, Plan], times_s: dict[int, list[float]], arguments: argparse.Namespace) -> None:
    schedule = one_f_one_b(STAGES, arguments.microbatches)
    fastest_s = {position: min(times) for position, times in times_s.items()}
    best_s = min(fastest_s.values())
    size = sum(int(np.prod(shape.shape)) for shape in plan.params_shapes)
    title = f"GPT-2 of {size / 1e6:.1f} M parameters, 2 stages, {arguments.microbatches} microbatches, 1f1b"
    columns = ("cut at", "first stage", "fastest (s)", "median (s)", "above the best", "predicted (s)", "off")
    table = Table(*columns, title=title, box=box.SIMPLE)
    for position, contender in plans.items():
        predicted_s = jax_passing.simulate(contender, schedule, Cluster(hosts=1)).time_s
        share = contender.facts[0].compute_s / sum(facts.compute_s for facts in contender.facts)
        table.add_row(
            f"{position}{' (chosen)' if position in plan._cuts else ''}",
            f"{share:.1%} of the work",
            f"{fastest_s[position]:.3f}",
            f"{np.median(times_s[position]):.3f}",
            f"{fastest_s[position] / best_s - 1:.1%}",
            f"{predicted_s:.3f}",
            f"{predicted_s / fastest_s[position] - 1:+.1%}",
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()

"""Predicts once more the steps that docs/reference/benchmarks.md has under Overlap, from what was measured of them.

    python benchmarks/training/overlap_replayed.py

Nothing is trained. Stages take their shares of the step that was measured without communication, by operations counted
from shapes. So this tells what the simulator's assumptions do: how many stages, at whose ends gradients are final, and
how much processor time a sum takes from the computation beside it, as a multiple of the planner's constants.
"""

import sys
from dataclasses import replace

import jax
from benchmark_models import small
from rich import box
from rich.console import Console
from rich.table import Table

import jax_passing
from jax_passing.collective.primitives.planner import Cluster
from jax_passing.partitioning.plan import Plan
from jax_passing.pipelining.schedules import interleaved

# Links in Gbit/s; measured steps in seconds, without communication and with overlap; stages of that run.
MEASURED = {
    "gpt2": (0.935, 0.523, 0.817, 4),
    "alexnet": (1.066, 0.412, 0.672, 4),
    "vgg16": (1.610, 0.250, 0.428, 4),
    "resnet50": (0.641, 0.376, 0.541, 2),
}
FINER = 16
CORES, BUCKET_BYTES = 2, 4 << 20


def planned(name: str, stages: int, alone_s: float) -> Plan:
    trained = small(name)
    params, batch = jax.eval_shape(trained.init), jax.eval_shape(lambda: trained.batch(trained.rows, 0))
    plan = jax_passing.partition(trained.loss, params, batch, stages=stages, max_live=8, flops_per_s=1.0)
    scale = alone_s / sum(facts.compute_s for facts in plan.facts)
    facts = [replace(one, compute_s=one.compute_s * scale, forward_s=one.forward_s * scale) for one in plan.facts]
    return replace(plan, facts=tuple(facts))


def step_s(plan: Plan, gbit: float, work: float) -> float:
    """`work`: how many times the planner's processor time sums take of the cores."""
    cluster = Cluster(hosts=2, link_gbit=gbit, shared_cores=CORES)
    cheap = jax_passing.simulate(plan, interleaved(1, 1, len(plan.stages)), cluster, bucket_bytes=BUCKET_BYTES)
    return cheap.time_s + (work - 1) * (cheap.compute_s - sum(facts.compute_s for facts in plan.facts))


def main() -> None:
    table = Table("model", "measured (s)", title="steps with overlap, and how far predictions are off", box=box.SIMPLE)
    for heading in ("stages of that run", f"{FINER} stages", f"{FINER} stages, 2 x processor", "3 x"):
        table.add_column(heading, justify="right")
    for name, (gbit, alone_s, measured_s, stages) in MEASURED.items():
        coarse, fine = planned(name, stages, alone_s), planned(name, FINER, alone_s)
        cases = ((coarse, 1.0), (fine, 1.0), (fine, 2.0), (fine, 3.0))
        off = [step_s(plan, gbit, work) / measured_s - 1 for plan, work in cases]
        table.add_row(name, f"{measured_s:.3f}", *(f"{one:+.0%}" for one in off))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()

"""Two processes of `jax.distributed` that don't make the same plan or pipeline, and then one that both make.

Each of them has a stage. What comes of it is printed, for the test to compare.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np

import jax_passing
from jax_passing.errors import PassingError
from jax_passing.host import processes
from jax_passing.partitioning import measure as partitioning

N, MICROBATCHES = 8, 2
PARAMS = [np.eye(N, dtype=np.float32) / 2] * 4
MICROBATCH = np.ones((3, N), np.float32)


def loss_of(cut_behind: int | None = None, factor: float = 1.0):
    def loss(params, batch):
        for number, weight in enumerate(params):
            batch = factor * jnp.tanh(batch @ weight)
            if number == cut_behind:
                batch = jax_passing.cut(batch)
        return jnp.mean(batch)

    return loss


def refused(what: str, call) -> None:
    try:
        call()
    except (PassingError, ZeroDivisionError) as error:
        print(f"{what}: {type(error).__name__}: {error}")
    else:
        raise AssertionError(f"{what} isn't refused")


def main() -> None:
    processes.DEADLINE_S = 60.0
    rank = int(os.environ["JAX_PASSING_RANK"])
    jax.distributed.initialize(os.environ["COORDINATOR"], num_processes=2, process_id=rank)
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 1), ("stage", "data"))

    def plan(loss=None, params=None, **options):
        return jax_passing.partition(loss or loss_of(), params or PARAMS, MICROBATCH, stages=2, **options)

    def pipeline(made, **options):
        return jax_passing.pipeline(made, mesh, **{"microbatches": MICROBATCHES} | options)

    def step_of(made):
        """The loss of a step, rounded."""
        step = pipeline(made)
        value, _ = step(step.place(PARAMS), np.concatenate([MICROBATCH] * MICROBATCHES))
        return f"{float(value):.5f}"

    # The slowest operations are first, so process 0 cuts early; process 1 would raise if it measured, too.
    partitioning.stage_times_s = (lambda *_: [1.0, 1e-3]) if rank == 0 else None
    measured = plan(cost="measure", imbalance=0)  # what is 1,000 times as fast would all be traded for bytes
    print(f"measured: {[len(stage.pieces) for stage in measured.stages]}, loss {step_of(measured)}")
    print(f"counted: {[len(stage.pieces) for stage in plan().stages]}, loss {step_of(plan())}")
    refused("measured loss", lambda: plan(loss_of(factor=1.0 + rank), cost="measure"))
    refused("raising", lambda: plan(lambda *given: loss_of(factor=1.0 / (1 - rank))(*given), cost="measure"))
    partitioning.stage_times_s = lambda *_: 1 / 0
    refused("measuring", lambda: plan(cost="measure"))

    refused("cuts", lambda: pipeline(plan(loss_of(cut_behind=1 + rank))))
    refused("loss", lambda: pipeline(plan(loss_of(factor=1.0 + rank))))
    refused("microbatches", lambda: pipeline(plan(), microbatches=2 + rank))
    refused("refusal", lambda: pipeline(plan(), schedule=("1f1b", "2f2b")[rank]))

    processes.DEADLINE_S = 1.0
    if rank == 1:  # alone
        refused("alone", lambda: plan(cost="measure"))
        refused("alone", lambda: pipeline(plan()))


main()

"""Trains a small GPT-2 on the sources of Python's standard library, in a pipeline of stages on each of several hosts.

    jax-passing run --hosts 2 --devices-per-host 4 examples/train_pipeline.py

Nothing in the model says where it is to be cut. Run with --hosts 1 it is the same program in a world of one host.
"""

import sys
import sysconfig
from pathlib import Path

import jax
import numpy as np
import optax
from models import gpt2
from rich.progress import track

import jax_passing

STAGES, MICROBATCHES, ROWS = 2, 4, 2  # ROWS: of a microbatch
STEPS = 60
MODEL = gpt2.GPT2(gpt2.TINY)
OPTIMIZER = optax.adam(3e-3)


def text():
    """Bytes of source text."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)


def batches(count):
    """Of each step, `count` rows of tokens: the same on every host."""
    rng, tokens = np.random.default_rng(seed=0), text()
    length = MODEL.config.context + 1
    for _ in range(STEPS):
        starts = rng.integers(0, len(tokens) - length, count)
        yield {"tokens": tokens[starts[:, np.newaxis] + np.arange(length)].astype(np.int32)}


def train(value_and_grad, params, batches):
    """The losses of all steps."""
    update = jax.jit(OPTIMIZER.update)
    state, losses = OPTIMIZER.init(params), []
    for batch in batches:
        (loss, _), gradients = value_and_grad(params, batch)
        updates, state = update(gradients, state)
        params = optax.apply_updates(params, updates)
        losses.append(float(loss))
    return np.array(losses)


def main(session):
    devices = np.array(jax.local_devices()).reshape(STAGES, -1)
    mesh = jax.sharding.Mesh(devices, ("stage", "data"))
    rows = devices.shape[1] * MICROBATCHES * ROWS  # of each host
    mine = slice(session.rank * rows, (session.rank + 1) * rows)
    every = list(batches(session.world_size * rows))

    loss = gpt2.loss_of(MODEL)
    params = MODEL.init(jax.random.key(0), every[0]["tokens"][:1, :-1])["params"]
    microbatch = {"tokens": every[0]["tokens"][:ROWS]}
    plan = jax_passing.partition(loss, params, microbatch, stages=STAGES, has_aux=True)
    step = jax_passing.pipeline(plan, mesh, microbatches=MICROBATCHES, schedule="zb-h1")
    if session.rank == 0:
        print(plan, step.schedule, sep="\n")
    show = {"description": "training", "disable": session.rank != 0}
    losses = train(step, params, track([{"tokens": batch["tokens"][mine]} for batch in every], **show))
    if session.rank != 0:
        return True

    reference = train(jax.jit(jax.value_and_grad(loss, has_aux=True)), params, every)
    difference = np.abs(losses - reference).max()
    print(f"loss        {losses[0]:.3f} before and {losses[-10:].mean():.3f} after {STEPS} steps")
    print(f"reference   one device, whole batch, no stages: losses within {difference:.1e} (bound 1e-03)")
    return difference < 1e-3 and losses[-10:].mean() < 0.7 * losses[0]


if __name__ == "__main__":
    with jax_passing.init(axis_name="data") as session:
        passed = main(session)
    sys.exit(0 if passed else 1)

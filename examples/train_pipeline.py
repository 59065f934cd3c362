"""Trains a small GPT-2 on the sources of Python's standard library, in a pipeline on each of several hosts.

    jax-passing run --hosts 2 --devices-per-host 4 examples/train_pipeline.py

train_alone.py does the same on one device.
"""

import sysconfig
from pathlib import Path

import jax
import numpy as np
import optax
from flax.training.train_state import TrainState

import jax_passing
from models import gpt2

STEPS, ROWS = 40, 32
STAGES, MICROBATCHES = 2, 4
MODEL = gpt2.GPT2(gpt2.TINY)


def batches():
    """Rows of source text: a token is a byte."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)
    rng, length = np.random.default_rng(seed=0), MODEL.config.context + 1
    for _ in range(STEPS):
        starts = rng.integers(0, len(text) - length, ROWS)
        yield {"tokens": text[starts[:, np.newaxis] + np.arange(length)].astype(np.int32)}


def main(session):
    loss = gpt2.loss_of(MODEL)
    params = MODEL.init(jax.random.key(0), next(batches())["tokens"][:, :-1])["params"]
    mesh = jax.sharding.Mesh(np.array(jax.local_devices()).reshape(STAGES, -1), ("stage", "data"))
    rows = ROWS // session.world_size
    microbatch = {"tokens": next(batches())["tokens"][: rows // mesh.shape["data"] // MICROBATCHES]}
    plan = jax_passing.partition(loss, params, microbatch, stages=STAGES, has_aux=True)
    value_and_grad = jax_passing.pipeline(plan, mesh, microbatches=MICROBATCHES, schedule="zb-h1")
    optimizer = value_and_grad.by_stage(optax.adam(3e-3))
    state = TrainState.create(apply_fn=MODEL.apply, params=value_and_grad.place(params), tx=optimizer)
    for number, batch in enumerate(batches(), 1):
        own = {"tokens": batch["tokens"][session.rank * rows :][:rows]}
        (value, _), gradients = value_and_grad(state.params, own)
        state = state.apply_gradients(grads=gradients)
        if number % 10 == 0 and session.rank == 0:
            print(f"step {number}: loss {value:.4f}", flush=True)


if __name__ == "__main__":
    with jax_passing.init(axis_name="data") as session:
        main(session)

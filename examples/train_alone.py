"""Trains a small GPT-2 on the sources of Python's standard library, on one device.

    python examples/train_alone.py

train_pipeline.py does the same in a pipeline on each of several hosts.
"""

import sysconfig
from pathlib import Path

import jax
import numpy as np
import optax
from flax.training.train_state import TrainState

from models import gpt2

STEPS, ROWS = 40, 32
MODEL = gpt2.GPT2(gpt2.TINY)


def batches():
    """Rows of source text: a token is a byte."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)
    rng, length = np.random.default_rng(seed=0), MODEL.config.context + 1
    for _ in range(STEPS):
        starts = rng.integers(0, len(text) - length, ROWS)
        yield {"tokens": text[starts[:, np.newaxis] + np.arange(length)].astype(np.int32)}


def main():
    loss = gpt2.loss_of(MODEL)
    params = MODEL.init(jax.random.key(0), next(batches())["tokens"][:, :-1])["params"]
    value_and_grad = jax.jit(jax.value_and_grad(loss, has_aux=True))
    state = TrainState.create(apply_fn=MODEL.apply, params=params, tx=optax.adam(3e-3))
    for number, batch in enumerate(batches(), 1):
        (value, _), gradients = value_and_grad(state.params, batch)
        state = state.apply_gradients(grads=gradients)
        if number % 10 == 0:
            print(f"step {number}: loss {value:.4f}", flush=True)


if __name__ == "__main__":
    main()

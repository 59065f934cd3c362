"""A host of the soak: trains as examples/train_digits.py does until something breaks, and goes on in the next job."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing
from support.jax.lockstep import MARK, attempt, serve

sys.path.append(str(Path(__file__).parents[4] / "examples"))

import train_digits

STEPS_BEFORE_FAULTS = 3
CHECK_STEPS = 50  # between checks that all hosts hold the same bits


class Trainer:
    """Parameters and the state of the optimizer outlive sessions; whoever is new gets rank 0's."""

    def __init__(self) -> None:
        digits = train_digits.load_digits()
        self._images = (digits.images[..., np.newaxis] / 16).astype(np.float32)
        self._labels = digits.target
        mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
        self._step, self._same_bits = train_digits.make_steps(mesh)
        rank_0s = jax.shard_map(
            lambda tree: jax_passing.broadcast(tree, "d"), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
        )
        self._rank_0s = jax.jit(rank_0s)
        params = train_digits.MODEL.init(jax.random.key(0), self._images[:1])
        self._trained = params, train_digits.OPTIMIZER.init(params)
        self._session: jax_passing.Session | None = None

    def join(self, settings: dict[str, Any]) -> float:
        began = time.monotonic()
        self._session = jax_passing.init(axis_name="d", **settings)
        return time.monotonic() - began

    def train(self) -> dict[str, Any]:
        """Until the session fails."""
        session = self._session
        assert session is not None
        share = train_digits.BATCH // session.world_size
        steps = wrong = 0
        failure: jax_passing.errors.PassingError | None = None
        try:
            with jax_passing.errors.translate():
                params, state = self._rank_0s(self._trained)
                jax.block_until_ready(params)
                while True:
                    chosen = np.random.default_rng((session.rank, steps)).choice(
                        len(self._labels), share, replace=False
                    )
                    params, state, loss = self._step(params, state, self._images[chosen], self._labels[chosen])
                    loss.block_until_ready()
                    self._trained = params, state
                    steps += 1
                    if steps % CHECK_STEPS == 0:
                        wrong += not np.all(self._same_bits(params))
                    if steps == STEPS_BEFORE_FAULTS:
                        print(MARK + '{"trains": true}', flush=True)
        except jax_passing.errors.PassingError as raised:
            at, failure = time.monotonic(), raised
        session.shutdown()
        found = {"error": type(failure).__name__, "text": str(failure), "ranks": getattr(failure, "ranks", ())}
        counts = {"descriptors": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task"))}
        return {**found, "at": at, "sums": steps, "wrong": wrong, **counts}


trainer = Trainer()


def handle(question: dict[str, Any]) -> dict[str, Any]:
    match question:
        case {"do": "join", "settings": settings}:
            return attempt(lambda: trainer.join(settings))
        case {"do": "sum"}:
            return attempt(trainer.train)
        case _:
            return {}


serve(handle)

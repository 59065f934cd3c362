"""A host of examples/train_elastic.py that trains by diloco: it goes on by itself whatever happens to others.

elastic.py STEPS STEP_S
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import jax_passing
import jax_passing.optax as pace

sys.path.append(str(Path(__file__).parents[4] / "examples"))

import train_elastic

OPTIMIZER = pace.diloco(optax.sgd(0.1, momentum=0.9), None, "d", every=10, fragments=2, delay=3)


class Island(train_elastic.Training):
    """Its `momentum` is the optimizer's state."""

    def __init__(self, step_s: float) -> None:
        super().__init__(step_s)
        mesh = self.everywhere.mesh

        def mapped(f: Any, in_specs: Any) -> Any:
            return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=P()))

        def agreed(state: Any, is_newcomer: Any) -> Any:
            step, hosts = jax_passing.broadcast((state.step, state.hosts), "d")
            return train_elastic.State(step, hosts, *pace.agree(state.momentum, state.parameters, "d", is_newcomer))

        self._agreed = mapped(agreed, P())
        self.finish = mapped(pace.finish, P())

    @staticmethod
    def _step_of(parameters: Any, state: Any, images: Any, labels: Any) -> Any:
        own = jax.lax.pcast(parameters, "d", to="varying")
        gradients = jax.grad(train_elastic.loss_of)(own, images, labels)
        updates, state = OPTIMIZER.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state

    def agree(self, session: jax_passing.Session) -> None:
        self.waits_since = self.waits_since or time.monotonic()
        is_newcomer = session.rank >= session.survivors
        state = self.state
        if is_newcomer or state is None:
            state = train_elastic.initial_state()
            state = state._replace(momentum=OPTIMIZER.init(state.parameters))
        state = jax.device_put(state, self.everywhere)
        self.state = self.before = jax.block_until_ready(self._agreed(state, np.array(is_newcomer)))
        kept = all(map(np.array_equal, jax.tree.leaves(self.state.parameters), jax.tree.leaves(state.parameters)))
        print(
            f"agreed: {'newcomer' if is_newcomer else 'survivor'}, own parameters kept: {kept}, step {self.completed}",
            flush=True,
        )


def main() -> None:
    steps, step_s = int(sys.argv[1]), float(sys.argv[2])
    island = Island(step_s)
    with jax_passing.init(axis_name="d", world_size_min=2) as session:
        print(f"process {os.getpid()} has joined as rank {session.rank} of {session.world_size}", flush=True)
        train_elastic.train(session, island, steps)
        optimizer_state = island.finish(island.state.momentum)
        shared = pace.shared_params(optimizer_state, island.state.parameters)
        island.state = island.state._replace(parameters=shared)
        train_elastic.report(island, session.rank)


main()

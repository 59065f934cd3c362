"""Hosts whose optimizers were made with other numbers: each must hear of it, whoever comes to a sum first."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

import jax_passing
import jax_passing.optax as pace

STEPS = 8
SGD = optax.sgd(0.1)

# The last host has the second number.
CASES: dict[str, tuple[int, int, Callable[[int], Any]]] = {
    "staleness": (1, 2, lambda number: pace.stale(SGD, "d", number)),
    "staleness or none": (1, 0, lambda number: pace.stale(SGD, "d", number)),
    "local_sgd every": (2, 4, lambda number: pace.local_sgd(SGD, "d", every=number)),
    "diloco every": (4, 2, lambda number: pace.diloco(SGD, None, "d", every=number)),
    # All start the sum at the same step, and none waits for it at the same one.
    "diloco delay": (1, 2, lambda number: pace.diloco(SGD, None, "d", every=4, delay=number)),
}


def train(optimizer: Any) -> None:
    mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))

    def step(params: Any, state: Any, targets: Any) -> Any:
        own = jax.lax.pcast(params, "d", to="varying")
        updates, state = optimizer.update(own - targets[0], state, params)
        return optax.apply_updates(params, updates), state

    take = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P(), P("d")), out_specs=P()))
    params = jnp.zeros(5)
    state = optimizer.init(params)
    for number in range(STEPS):
        params, state = jax.block_until_ready(take(params, state, jnp.full((mesh.size, 5), 1.0 + number)))


def main(names: list[str]) -> None:
    for name in names or CASES:
        firsts, lasts, make = CASES[name]
        try:
            with jax_passing.init(axis_name="d", deadline_s=60) as session:
                train(make(lasts if session.rank == session.world_size - 1 else firsts))
        except jax_passing.errors.PassingError as error:
            print(f"{name}: {type(error).__name__}: {error}")
        else:
            print(f"{name}: no error")


main(sys.argv[1:])

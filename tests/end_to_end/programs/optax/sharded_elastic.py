"""Sharded optimizers in an elastic session, of which a host is lost: sharded_elastic.py RANK_THAT_LEAVES.

Hosts keep a copy of the whole state every few steps. When one leaves without a word, its part is gone; the others deal
the last copy anew, and come to the bits of a training in which so many hosts took each step.
"""

import functools
import os
import sys
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.errors import HostLostError, translate
from jax_passing.optax import deal, gather, part_specs, sharded
from support.jax.sharding import PARAMS, exact_gradients

STEPS, EVERY, LEAVES_AFTER = 9, 3, 5

leaver = int(sys.argv[1])
local = jax.local_device_count()
mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
inner = optax.sgd(0.1, momentum=0.9, nesterov=True)
optimizer = sharded(inner, "d", mesh)


def train_step(rows: Any, state: Any, params: Any) -> Any:
    updates, state = optimizer.update(jax.tree.map(lambda row: row[0], rows), state, params)
    return optax.apply_updates(params, updates), state


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def expected(hosts: list[int]) -> Any:
    """Returns the parameters after so many hosts have taken each step, by whole arrays, and the optimizer's state."""
    params, state = PARAMS, inner.init(PARAMS)

    @functools.partial(jax.jit, static_argnums=2)
    def update(sums: Any, state: Any, count: int) -> tuple[Any, Any]:
        return inner.update(jax.tree.map(lambda each: each / count, sums), state)

    for number, count in enumerate(hosts):
        rows = exact_gradients(number, range(count * local))
        sums = jax.tree.map(lambda each: each.astype(np.float32).sum(0).astype(each.dtype), rows)
        updates, state = update(sums, state, count * local)
        params = jax.jit(optax.apply_updates)(params, updates)
    return params, state


with jax_passing.init(axis_name="d", world_size_min=1) as session:
    first_rank = session.rank
    copies: list[Any] = [(0, PARAMS, inner.init(PARAMS))]  # by number
    hosts: list[int] = []
    while True:
        try:
            with translate(), jax_passing.fixed_size():
                number, params, whole = copies[-1]
                state, hosts = deal(whole, "d", mesh, params=PARAMS), hosts[:number]
                specs = part_specs(state, "d")
                step = jax.jit(
                    jax.shard_map(train_step, mesh=mesh, in_specs=(P("d"), specs, P()), out_specs=(P(), specs))
                )
                while number < STEPS:
                    if first_rank == leaver and number == LEAVES_AFTER:
                        os._exit(0)
                    mine = range(session.rank * local, (session.rank + 1) * local)
                    params, state = jax.block_until_ready(step(exact_gradients(number, mine), state, params))
                    number += 1
                    hosts.append(session.world_size)
                    if number % EVERY == 0:
                        copies.append((number, *jax.device_get((params, gather(state, "d", mesh)))))
            break
        except HostLostError:
            agreed = session.rejoin(len(copies) - 1)
            assert agreed is not None
            del copies[agreed + 1 :]  # the last one of some hosts may be missing on others
    assert hosts == [3] * EVERY + [2] * (STEPS - EVERY), hosts
    assert bits(copies[-1][1:]) == bits(expected(hosts))
    print(f"the bits after {number} steps are those of their hosts")

"""Sums in an elastic session with residuals, in programs that are compiled once: elastic.py RANK_THAT_LEAVES.

After some steps one host leaves without a word. The others go on from the state of one of them, without residuals.
"""

import os
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.errors import HostLostError, translate
from jax_passing.optax import compressed_psum, powersgd, restart
from support.jax.optimizing import PARAMS, difference, exact_mean, gradients, largest, steps_of

STEPS, LEAVES_AFTER = 6, 3
ROUNDING = 2.0**-19

leaver = int(sys.argv[1])
local = jax.local_device_count()
transformations = [compressed_psum("d", wire_dtype="int8"), powersgd("d", rank=2, wire_dtype="int8", start_step=2)]
steps = [steps_of(transformation, local) for transformation in transformations]
mesh = jax.sharding.Mesh(jax.local_devices()[:1], ("d",))
share = jax.jit(jax.shard_map(lambda x: jax_passing.broadcast(x, "d"), mesh=mesh, in_specs=P(), out_specs=P()))
everywhere = NamedSharding(jax.sharding.Mesh(jax.local_devices(), ("d",)), P())


def agreed(states: Any) -> Any:
    """Returns the states of rank 0, without its residuals."""
    shared = share(jax.tree.map(np.asarray, states))
    return restart(jax.device_put(jax.tree.map(np.asarray, shared), everywhere))


with jax_passing.init(axis_name="d", world_size_min=1) as session:
    first_rank, first_size = session.rank, session.world_size
    states: Any = jax.device_put([each.init(PARAMS) for each in transformations], everywhere)
    number, missing = 0, [jax.tree.map(lambda p: np.zeros(p.shape), PARAMS) for _ in steps]
    while number < STEPS:
        if first_rank == leaver and number == LEAVES_AFTER:
            os._exit(0)
        try:
            with translate():
                mine = range(session.rank * local, (session.rank + 1) * local)
                rows = gradients(number, mine)
                results = [step(rows, state, PARAMS) for step, state in zip(steps, states, strict=True)]
                jax.block_until_ready(results)
        except HostLostError:
            number = session.rejoin(number)
            states = agreed(states)
            assert all(largest(state.residuals) == 0 for state in states)
            missing = [jax.tree.map(np.zeros_like, each) for each in missing]
            continue
        states = [state for _, state in results]
        exact = exact_mean(number, session.world_size * local)
        for i, (means, _) in enumerate(results):
            missing[i] = jax.tree.map(lambda total, e, m: total + e - m, missing[i], exact, means)
        number += 1
    assert (session.world_size, first_size) == (2, 3)
    for state, rest in zip(states, missing, strict=True):
        residuals = jax_passing.process_sum(jax.tree.map(np.asarray, state.residuals.leaves))
        assert difference(rest, jax.tree.map(lambda total: total / session.world_size, residuals)) < ROUNDING
        assert largest(rest) > 2**-12
    assert [step._cache_size() for step in steps] == [1, 1]
    print(f"as many as {number} steps are right")

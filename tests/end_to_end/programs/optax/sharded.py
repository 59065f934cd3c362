"""Trains by sharded optimizers on several hosts: sharded.py FOLDER [HOSTS_BEFORE].

Updates are those of the optimizer on whole arrays; each host has its part of the bytes. Hosts save the state to
FOLDER, which is the one that whole arrays would have, and continue; with HOSTS_BEFORE they restore what so many hosts
have saved, and continue from it.
"""

import hashlib
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.optax import all_reduce, deal, gather, part_specs, sharded
from support.jax.sharding import adamw_bound, exact_gradients

RATE, DECAY, STEPS = 0.01, 0.1, 3
PARAMS = {
    "bias": jnp.linspace(-1, 1, 7),
    "half": jnp.linspace(-2, 2, 3000).astype(jnp.bfloat16).reshape(50, 60),
    "number": jnp.float32(2),
    "weight": jnp.linspace(-1, 1, 40 * 6 * 8).reshape(40, 6, 8),
}
# All hosts have them, and each contributes that of its own devices: sums of eight are exact.
DEVICES_MAX = 8

folder = Path(sys.argv[1]).absolute()
hosts_before = int(sys.argv[2]) if len(sys.argv) > 2 else None
local = jax.local_device_count()
mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
digest = hashlib.sha256()


def add(tree: Any) -> None:
    for leaf in jax.tree.leaves(tree):
        digest.update(np.asarray(leaf).tobytes())


def rows(step: int, session: jax_passing.Session, params: Any = PARAMS) -> Any:
    """Returns this host's gradients. Their sums over all devices are the same for any number of hosts: each of eight
    is one device's, or added to another's; so means by N are scaled by N."""
    every = exact_gradients(step, range(DEVICES_MAX), params)
    count = session.world_size * local
    own = range(session.rank * local, (session.rank + 1) * local)

    def mine(each: np.ndarray) -> np.ndarray:
        picked = [each[device::count].astype(np.float32).sum(0) for device in own]
        return np.stack(picked).astype(each.dtype)

    return jax.tree.map(mine, every)


def total(step: int, params: Any = PARAMS) -> Any:
    """Returns float64, in which sums are exact."""
    every = exact_gradients(step, range(DEVICES_MAX), params)
    return jax.tree.map(lambda each: each.astype(np.float64).sum(0), every)


def mapped(optimizer: Any, state: Any, given: Any) -> Any:
    specs = part_specs(state, "d"), part_specs(given, "d")

    def step(rows: Any, state: Any, params: Any) -> Any:
        updates, state = optimizer.update(jax.tree.map(lambda row: row[0], rows), state, params)
        return gather(updates, "d"), state

    over_devices = jax.shard_map(step, mesh=mesh, in_specs=(P("d"), *specs), out_specs=(P(), specs[0]))
    return jax.jit(over_devices, donate_argnums=1)


def difference(one: Any, other: Any) -> Any:
    """Returns by leaf how far they are from each other, to be read by people."""
    return jax.tree.map(lambda a, b: float(np.abs(np.float64(a) - np.float64(b)).max()), one, other)


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def sgd(session: jax_passing.Session) -> None:
    inner = optax.sgd(0.1, momentum=0.9, nesterov=True)
    optimizer = sharded(inner, "d", mesh)
    whole, state, parts = inner.init(PARAMS), optimizer.init(PARAMS), deal(PARAMS, "d", mesh)
    step, of_parts = mapped(optimizer, state, PARAMS), mapped(optimizer, state, parts)
    devices = session.world_size * local

    @jax.jit  # with the division, whose product with 1 / devices XLA may fuse with a sum of the update
    def update(sums: Any, state: Any) -> tuple[Any, Any]:
        return inner.update(jax.tree.map(lambda each: each / devices, sums), state)

    for number in range(STEPS):
        expected, whole = update(jax.tree.map(lambda each, p: each.astype(p.dtype), total(number), PARAMS), whole)
        if number % 2:
            updates, state = step(rows(number, session), state, PARAMS)
        else:
            updates, state = of_parts(rows(number, session), state, parts)
        assert bits(updates) == bits(expected), difference(updates, expected)
        add(updates)
    assert bits(gather(state, "d", mesh)) == bits(whole)


def norms(session: jax_passing.Session) -> None:
    """Norms are those of all hosts' parts, and a NaN on one host is noticed by all."""
    params = {"bias": PARAMS["bias"], "weight": PARAMS["weight"]}
    inner = optax.apply_if_finite(optax.chain(optax.clip_by_global_norm(0.5), optax.lamb(RATE)), 5)
    optimizer = sharded(inner, "d", mesh)
    plain = optax.chain(all_reduce("d"), inner)
    state, whole = optimizer.init(params), plain.init(params)
    step, reference = mapped(optimizer, state, params), mapped(plain, whole, params)
    for number in range(STEPS):
        own = rows(number, session, params)
        if number == 1 and session.rank == session.world_size - 1:
            own["weight"].reshape(-1)[-1] = np.nan
        updates, state = step(own, state, params)
        expected, whole = reference(own, whole, params)
        for one, other in zip(jax.tree.leaves(updates), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=2.0**-18 * RATE)
        assert bool(jnp.any(updates["bias"] != 0)) == (number != 1)
        add(updates)
    assert int(state.total_notfinite) == 1


def adamw(session: jax_passing.Session) -> None:
    devices = session.world_size * local
    inner = optax.adamw(RATE, weight_decay=DECAY, mu_dtype=jnp.float32)
    optimizer = sharded(inner, "d", mesh)
    state = optimizer.init(PARAMS)
    held = jax_passing.process_sum(sum(each.nbytes for each in jax.tree.leaves(state)))
    assert held <= 1.05 * sum(each.nbytes for each in jax.tree.leaves(inner.init(PARAMS))), held
    step = mapped(optimizer, state, PARAMS)

    def save(state: Any) -> None:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder / "state", state)
            checkpointer.wait_until_finished()

    def scaled(step: int) -> Any:  # so that the mean is the same for each number of devices
        return jax.tree.map(lambda each: (each.astype(np.float32) * devices).astype(each.dtype), rows(step, session))

    if hosts_before is None:
        for number in range(STEPS):
            updates, state = step(scaled(number), state, PARAMS)
        saved = gather(state, "d", mesh)
        jax_passing.on_rank_zero(lambda: save(saved))
    else:
        with ocp.StandardCheckpointer() as checkpointer:
            # As whole arrays have it: also a training that isn't sharded could restore it, or have saved it.
            everywhere = jax.sharding.NamedSharding(mesh, P())
            saved = checkpointer.restore(
                folder / "state",
                jax.tree.map(
                    lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=everywhere),
                    jax.eval_shape(inner.init, PARAMS),
                ),
            )
        state = deal(saved, "d", mesh, params=PARAMS)
    assert jax.tree.structure(saved) == jax.tree.structure(inner.init(PARAMS))
    expected, _ = jax.jit(inner.update)(
        jax.tree.map(lambda t, p: t.astype(p.dtype), total(STEPS), PARAMS), saved, PARAMS
    )
    updates, state = step(scaled(STEPS), state, PARAMS)
    floats = {name for name, leaf in PARAMS.items() if leaf.dtype == jnp.float32}
    bounds = adamw_bound(saved, total(STEPS), PARAMS, RATE, DECAY)
    for name in floats:
        off = np.abs(np.float64(updates[name]) - np.float64(expected[name]))
        assert (off <= bounds[name]).all(), (name, off.max())
        print(f"adamw: {name} is off by {(off / bounds[name]).max():.2f} of the bound")
    print(f"state {hashlib.sha256(b''.join(bits(saved))).hexdigest()[:16]}")
    add(updates)


with jax_passing.init(axis_name="d") as session:
    if hosts_before is None:
        sgd(session)
        norms(session)
    adamw(session)
    print(f"digest {digest.hexdigest()}")

"""Gradients of several hosts' devices, and steps of optax's transformations with them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

PARAMS = {"b": jnp.zeros(7), "w": jnp.zeros((40, 6, 8)), "z": jnp.zeros((2, 3))}


def gradients(step, devices, params=PARAMS):
    """Returns the gradients of these devices: a row for each."""
    rows = []
    for device in devices:
        random = np.random.default_rng((step, device))
        rows.append(jax.tree.map(lambda p, random=random: random.normal(size=p.shape).astype(p.dtype), params))
    return jax.tree.map(lambda *each: np.stack(each), *rows)


def exact_mean(step, devices, params=PARAMS):
    return jax.tree.map(lambda rows: rows.astype(np.float64).mean(0), gradients(step, range(devices), params))


def steps_of(transformation, devices, check_vma=True, axis_name="d"):
    """Returns a jitted step: (gradients of this host's devices, state) to (updates, state)."""
    mesh = jax.sharding.Mesh(jax.local_devices()[:devices], (axis_name,))

    def step(rows, state, params):
        return transformation.update(jax.tree.map(lambda row: row[0], rows), state, params)

    specs = {"in_specs": (P(axis_name), P(), P()), "out_specs": (P(), P())}
    return jax.jit(jax.shard_map(step, mesh=mesh, check_vma=check_vma, **specs))


def largest(tree):
    return max(float(np.abs(np.asarray(leaf, np.float64)).max()) for leaf in jax.tree.leaves(tree))


def difference(one, other):
    return largest(jax.tree.map(lambda a, b: np.asarray(a, np.float64) - np.asarray(b, np.float64), one, other))

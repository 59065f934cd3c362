"""Programs on a mesh of this process, and values for them."""

import jax
import numpy as np
from jax.sharding import PartitionSpec as P


def mesh_of(devices):
    return jax.sharding.Mesh(jax.local_devices()[:devices], ("d",))


def on_mesh(f, devices=2, *, in_specs=P("d"), out_specs=P("d"), check_vma=False):
    return jax.jit(jax.shard_map(f, mesh=mesh_of(devices), in_specs=in_specs, out_specs=out_specs, check_vma=check_vma))


def values(dtype, shape=(4, 3, 5)):
    random = np.random.default_rng(7)
    numbers = random.normal(size=shape) * 2.0 ** random.integers(-6, 6, shape)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    return (numbers + 1j * numbers[::-1] if np.issubdtype(dtype, np.complexfloating) else numbers).astype(dtype)


def bits(tree):
    return [(leaf.dtype, leaf.shape, np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(tree)]

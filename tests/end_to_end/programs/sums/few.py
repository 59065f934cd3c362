"""A few sums, large and small, whose results' bits are told as a digest."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing

mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))


@jax.jit
@jax.shard_map(mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
def step(tree):
    return jax_passing.psum(tree, "d"), jax_passing.pmax(tree["c"], "d")


with jax_passing.init(axis_name="d") as session:
    draw = np.random.default_rng(session.rank)
    numbers = draw.standard_normal(150_000).astype(np.float32)
    tree = {
        "a": jnp.asarray(numbers),
        "b": jnp.asarray(numbers[:30_001], jnp.bfloat16),
        "c": jnp.arange(50_000) * (1 - 2 * session.rank),
        "d": jnp.asarray(numbers[:100]),
    }
    bits = hashlib.sha256()
    for _ in range(5):
        sums, maxima = step(tree)
        for each in jax.tree.leaves((sums, maxima)):
            bits.update(np.asarray(each).tobytes())
        tree["a"] = sums["a"] * 0.5
    print("digest", bits.hexdigest())

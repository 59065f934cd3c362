"""Collectives on meshes of this process, arrays of every dtype, and comparisons of their bits."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

NARROW = ["bool", "int4", "uint4", "int8", "int16", "int32", "uint8", "uint16", "uint32"]
FLOATS = ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32"]
X64 = ["int64", "uint64", "float64"]


def on_mesh(f, *, check_vma=False, in_specs=P("d"), out_specs=P("d"), devices=4):
    mesh = jax.make_mesh((devices,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma))


def on_grid(f, *, check_vma=False, in_specs=P(("d", "m")), out_specs=P(("d", "m"))):
    mesh = jax.make_mesh((4, 2), ("d", "m"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma))


def any_bits(dtype, shape, seed=0):
    """Returns elements of all kinds: numbers of any size and sign, NaN with a payload, infinities, denormals."""
    bits = np.random.default_rng(seed).integers(0, 256, (*shape, jnp.dtype(dtype).itemsize), np.uint8)
    if dtype == "bool":
        bits &= 1
    if dtype in ("int4", "uint4"):
        return jnp.asarray(bits[..., 0] >> 4, np.uint8).astype(dtype)
    if dtype == "float8_e5m2":
        bits[(bits & 0x7F) == 0x7D] |= 2  # jaxlib 0.12 makes these quiet NaN wherever it copies them
    return jnp.asarray(bits.view(jnp.dtype(dtype))[..., 0])


def numbers(dtype, shape, seed=0):
    """Returns numbers of any bits, but no NaN."""
    array = any_bits(dtype, shape, seed)
    if jnp.issubdtype(dtype, jnp.floating):
        array = jnp.where(
            jnp.isnan(array.astype(np.float32) if array.itemsize < 4 else array), jnp.ones_like(array), array
        )
    return array


def same_bits(ours, theirs):
    assert jax.tree.map(lambda a: (a.shape, a.dtype), ours) == jax.tree.map(lambda a: (a.shape, a.dtype), theirs)
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        mine, other = np.asarray(mine), np.asarray(other)
        assert mine.tobytes() == other.tobytes(), (mine, other)


def same(ours, theirs, *args, **options):
    same_bits(on_mesh(ours, **options)(*args), on_mesh(theirs, **options)(*args))

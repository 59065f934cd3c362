"""Each collective of `jax.lax` by itself in `shard_map`, over each axis of each mesh, for each dtype."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from over_mesh import meshes, placed, sum_bound

# XLA itself widens these: bfloat16 to float32, others to float16 or float32.
WIDENED = ("bfloat16", "float8_e4m3fn", "float4_e2m1fn")
DTYPES = ("float32", "float16", *WIDENED, "int8", "uint8", "int16", "uint16", "int32", "uint32", "bool", "complex64")
WIDE = ("float64", "int64", "uint64", "complex128")


def numbers(dtype: Any, shape: tuple[int, ...], seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    if dtype == np.bool_:
        return draw.integers(0, 2, shape).astype(bool)
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        return draw.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return (draw.normal(size=shape) + 1j * draw.normal(size=shape)).astype(dtype)
    drawn = draw.normal(size=shape).astype(dtype)
    return np.where(drawn == 0, np.ones(1, dtype), drawn)  # gloo may take either of +0 and -0 for the larger one


def sums(x: jax.Array, axis: Any) -> dict[str, jax.Array]:
    return {"psum": lax.psum(x, axis), "psum_scatter": lax.psum_scatter(x, axis, scatter_dimension=1, tiled=True)}


def moved(x: jax.Array, axis: Any, size: int) -> dict[str, jax.Array]:
    """Returns what no way to carry it may change by a bit."""
    ring = [(i, (i + 1) % size) for i in range(size)]
    given = {
        "all_to_all": lax.all_to_all(x, axis, split_axis=1, concat_axis=0, tiled=True),
        "ring": lax.ppermute(x, axis, ring),
        "to_the_right": lax.ppermute(x, axis, ring[:-1]),
        "back": lax.ppermute(x, axis, [(b, a) for a, b in ring]),
    }
    given["all_gather"] = lax.all_gather(x, axis)
    if not jnp.issubdtype(x.dtype, jnp.complexfloating):
        given |= {"pmax": lax.pmax(x, axis), "pmin": lax.pmin(x, axis)}
    return given


def results() -> Iterator[tuple[str, jax.Array, float]]:
    dtypes = DTYPES + (WIDE if jax.config.jax_enable_x64 else ())
    rows = P(("a", "b"))
    for mesh_name, mesh in meshes():
        for axis in ("a", "b", ("a", "b")):
            size = int(np.prod([mesh.shape[one] for one in np.atleast_1d(axis)]))
            drawn = {name: numbers(jnp.dtype(name), (mesh.size, size * 3, 2), seed) for seed, name in enumerate(dtypes)}

            def both(xs, axis=axis, size=size):
                added = {name: sums(x, axis) for name, x in xs.items() if name != "bool"}
                return added, {name: moved(x, axis, size) for name, x in xs.items()}

            # One program, as a training step is: all of its collectives are independent of one another.
            step = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=rows, out_specs=rows))
            added, unchanged = step({name: placed(mesh, x, ("a", "b")) for name, x in drawn.items()})
            for kind in (added, unchanged):
                for name, values in kind.items():
                    largest = float(np.abs(drawn[name].astype(np.complex128)).max())
                    bound = sum_bound(largest, size, jnp.dtype(name)) if kind is added else 0.0
                    for what, value in values.items():
                        yield f"{mesh_name} {axis} {name} {what}", value, bound

"""Meshes over all processes, arrays on them, and how far two ways of adding them up may be apart."""

import os
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def meshes() -> Iterator[tuple[str, Mesh]]:
    """Yields meshes of two axes: their groups are hosts, parts of hosts, some of the hosts, and all of them.

    MESHES names those that a quick run takes."""
    devices = np.asarray(jax.devices())
    count = len(devices)
    for name, grid in (
        ("row", devices.reshape(1, count)),
        ("pairs", devices.reshape(-1, 2) if count % 2 == 0 else devices.reshape(count, 1)),
        ("halves", devices.reshape(2, -1) if count % 2 == 0 else devices.reshape(1, count)[:, ::-1]),
        ("columns", devices.reshape(2, -1).T if count % 2 == 0 else devices.reshape(count, 1)[::-1]),
    ):
        if name in os.environ.get("MESHES", name):
            yield name, Mesh(grid, ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def placed(mesh: Mesh, array: np.ndarray, *spec: str | tuple[str, ...] | None) -> jax.Array:
    """Every process makes the same array and gives its own shards."""
    return jax.make_array_from_callback(array.shape, NamedSharding(mesh, P(*spec)), lambda index: array[index])


def sum_bound(largest: float, terms: int, dtype: np.dtype) -> float:
    """Bounds the distance of two sums of `terms` elements, each at most `largest`.

    One adds in floating point: each of terms - 1 additions rounds at most terms * largest to the dtype, and so may the
    other within a host. That one then rounds each of H host elements to a fixed point of 2^(E-31+h), half a unit each
    (docs/internals/fixed_point.md); 2^E is at most twice the largest host element, H = the processes. float64 has
    2^(E-62+2h). The result is rounded once more."""
    if not jnp.issubdtype(dtype, jnp.inexact):
        return 0.0
    hosts = jax.process_count()
    headroom = (hosts - 1).bit_length()
    wide = jnp.finfo(dtype).bits == 64
    unit = 2.0 ** (2 * headroom - 61 if wide else headroom - 30) * terms * largest
    rounding = 2.0 ** -(jnp.finfo(dtype).nmant + 1) * terms * largest
    return hosts * unit + 2 * terms * rounding


def trained_bound(before: np.ndarray | jax.Array, steps: int) -> float:
    """Bounds the distance of two trainings that differ in how gradients were summed.

    A gradient's error is some 2^-22 of its largest element. A step at most doubles an error of the parameters, as the
    rate times the curvature is below 1 in these small models. 16 is for the several sums on a gradient's way."""
    return 16 * 2.0**-22 * 2.0**steps * max(1.0, float(np.abs(np.asarray(before)).max()))

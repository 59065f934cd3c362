"""Sums of values of all kinds and dtypes over groups of this host's devices; prints a digest of all result bits.

Every host knows all hosts' inputs: integers, maxima, and where floats are NaN are compared with numpy's. Denormals are
among the float16 alone: XLA's CPU has no others, and on some hosts it is XLA that adds up the devices.
"""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing

jax.config.update("jax_enable_x64", True)
NAMES = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
DTYPES = [*map(np.dtype, NAMES.split()), np.dtype(ml_dtypes.bfloat16)]
SHAPES = [(), (7,), (1440,), (3, 5, 97), (0, 2), (4321,)]
SPEC = P(("g", "d"))


def values(rank: int, devices: int, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
    """One host's, a row for each device."""
    if np.issubdtype(dtype, np.complexfloating):
        part = np.dtype(f"float{dtype.itemsize * 4}")
        parts = np.stack([values(rank, devices, shape, part, seed + 1000 * i) for i in (1, 2)], -1)
        return parts.view(dtype)[..., 0]
    random = np.random.default_rng([seed, rank])
    shape = (devices, *shape)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    limits = jnp.finfo(dtype)
    found = (random.normal(size=shape) * 2.0 ** random.integers(-9, 9, shape)).astype(dtype)
    small = limits.smallest_subnormal if dtype == np.float16 else limits.tiny
    special = np.array([np.nan, np.inf, -np.inf, -0.0, limits.max, -limits.max, small, 3 * small]).astype(dtype)
    chosen = random.random(shape) < 0.01
    found[chosen] = random.choice(special, int(chosen.sum()))
    return found


def main() -> None:
    digest = hashlib.sha256()
    with jax_passing.init(axis_name="d") as session:
        mesh = jax.sharding.Mesh(np.reshape(jax.local_devices(), (2, -1)), ("g", "d"))
        count = mesh.size

        def of_all(shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
            """By host, g and d."""
            rows = [values(rank, count, shape, dtype, seed) for rank in range(session.world_size)]
            return np.stack(rows).reshape(session.world_size, *mesh.devices.shape, *shape)

        def results(function: Any, rows: list[np.ndarray], **options: bool) -> list[np.ndarray]:
            """By g and d."""
            mapped = jax.shard_map(function, mesh=mesh, in_specs=SPEC, out_specs=SPEC, **options)
            got = jax.jit(mapped)([each[session.rank].reshape(count, *each.shape[3:]) for each in rows])
            for each in got:
                digest.update(np.asarray(each).tobytes())
            return [np.asarray(each).reshape(*mesh.devices.shape, *each.shape[1:]) for each in got]

        rows = [of_all(shape, dtype, seed) for seed, dtype in enumerate(DTYPES) for shape in SHAPES]
        for number, axes in enumerate(("d", ("d", "g"))):

            def totals(leaves: list[jax.Array], axes: Any = axes) -> list[jax.Array]:
                return jax_passing.psum(leaves, axes)

            along = 1 if axes == "d" else (0, 1)
            for mine, each in zip(results(totals, rows, check_vma=bool(number % 2)), rows, strict=True):
                if np.issubdtype(mine.dtype, np.integer):
                    expected = each.astype(np.uint64).sum(0).sum(along, keepdims=True).astype(mine.dtype)
                    np.testing.assert_array_equal(mine, np.broadcast_to(expected, mine.shape))
                elif not np.issubdtype(mine.dtype, np.complexfloating):
                    with np.errstate(invalid="ignore", over="ignore"):
                        expected = np.isnan(each.astype(np.float64).sum(0).sum(along, keepdims=True))
                    np.testing.assert_array_equal(np.isnan(mine), np.broadcast_to(expected, mine.shape))

        rows = [of_all((1001,), np.dtype(dtype), 77) for dtype in (np.int32, np.float32)]
        for mine, each in zip(results(lambda leaves: jax_passing.pmax(leaves, "d"), rows), rows, strict=True):
            np.testing.assert_array_equal(mine, np.broadcast_to(each.max((0, 2))[:, None], mine.shape))
    print(f"digest {digest.hexdigest()}")


main()

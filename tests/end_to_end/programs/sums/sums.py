"""Deployment A: every dtype, shape and transform on a mesh of this host's devices, summed over all hosts.

    sums.py [DTYPE...]

Every host knows all hosts' inputs, so each result is compared with numpy's. Prints a digest of all result bits. With
names of dtypes only these are summed by themselves, for tests of what carries sums.
"""

import hashlib
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing

jax.config.update("jax_enable_x64", True)
digest = hashlib.sha256()

NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 bfloat16"


def inputs(rank: int, devices: int, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
    """One host's values, a row for each device."""
    random = np.random.default_rng([seed, rank])
    shape = (devices, *shape)
    if dtype == np.bool_:
        return random.integers(0, 2, shape).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    values = random.normal(size=shape) * 2.0 ** random.integers(-6, 6, shape)
    if np.issubdtype(dtype, np.complexfloating):
        values = values + 1j * random.normal(size=shape)
    return values.astype(dtype)


def bound(rows: np.ndarray, dtype: np.dtype) -> float:
    """Per element: half a unit of the dtype a rounding, of the largest magnitude (docs/internals/fixed_point.md)."""
    digits = {"float16": 11, "bfloat16": 8, "float32": 24, "complex64": 24, "float64": 50, "complex128": 50}[dtype.name]
    wide = np.complex128 if np.issubdtype(dtype, np.complexfloating) else np.float64
    return float(np.abs(rows.astype(wide)).max(initial=0)) * rows.shape[0] * (rows.shape[0] + 1) * 2.0**-digits


def check(name: str, got: jax.Array, rows: np.ndarray, dtype: np.dtype) -> None:
    """`rows`: the values of all devices of all hosts."""
    got = np.asarray(got)
    digest.update(got.tobytes())
    if dtype == np.bool_:
        np.testing.assert_array_equal(got, rows.astype(np.int32).sum(0), err_msg=name)
    elif np.issubdtype(dtype, np.integer):
        expected = rows.astype(np.uint64).sum(0).astype(dtype)  # wraps
        np.testing.assert_array_equal(got, expected, err_msg=name)
    else:
        wide = np.complex128 if np.issubdtype(dtype, np.complexfloating) else np.float64
        expected = rows.astype(wide).sum(0)
        np.testing.assert_allclose(got.astype(wide), expected, rtol=0, atol=bound(rows, dtype), err_msg=name)


def psum_each(mesh: jax.sharding.Mesh, several: list[np.ndarray], **kwargs: bool) -> list[jax.Array]:
    """Each by a call of its own, all in one program: to compile takes longer than to sum."""

    def body(several: list[jax.Array]) -> list[jax.Array]:
        return [jax_passing.psum(x[0], "d") for x in several]

    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P(), **kwargs))(several)


def main() -> None:
    with jax_passing.init(axis_name=("d", "i")) as session:
        devices = jax.local_device_count()
        mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
        everyone = range(session.world_size)

        def all_rows(shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
            return np.concatenate([inputs(rank, devices, shape, dtype, seed) for rank in everyone])

        dtypes = [jnp.dtype(name) for name in sys.argv[1:] or NAMES.split()]
        # The empty ones by themselves: jaxlib 0.11.2 crashes when it compiles a program with an empty and another sum,
        # be it jax.lax's.
        shapes = [(), (1,), (7,), (1440,), (1441,), (33, 5, 7), (50_000,)]
        programs = [[(shape, dtype) for shape in shapes] for dtype in dtypes] + [[((0,), dtype) for dtype in dtypes]]
        for seed, cases in enumerate(programs):
            mine = [inputs(session.rank, devices, *case, seed) for case in cases]
            for case, got in zip(cases, psum_each(mesh, mine, check_vma=bool(seed % 2)), strict=True):
                check(f"{case}", got, all_rows(*case, seed), case[1])

        # A tree of leaves of several dtypes, some empty, one a strided view; pmean; NaN and infinities.
        float32 = np.dtype(np.float32)
        mine = inputs(session.rank, devices, (6, 8), float32, 100)
        rows = all_rows((6, 8), float32, 100)

        def tree(x: jax.Array) -> dict[str, jax.Array]:
            x = x[0]
            return jax_passing.psum(
                {"a": x, "b": [x[::2, 1::3], x[:0]], "c": x.astype(jnp.bfloat16), "d": x[0, 0]}, "d"
            )

        got = jax.jit(jax.shard_map(tree, mesh=mesh, in_specs=P("d"), out_specs=P()))(mine)
        check("tree a", got["a"], rows, float32)
        check("tree view", got["b"][0], rows[:, ::2, 1::3], float32)
        assert got["b"][1].shape == (0, 8)
        check("tree bfloat16", got["c"], rows.astype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.bfloat16))
        check("tree scalar", got["d"], rows[:, 0, 0], float32)

        mean = jax.jit(
            jax.shard_map(lambda x: jax_passing.pmean(x[0], "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
        )(mine)
        np.testing.assert_allclose(mean, rows.mean(0), atol=bound(rows, float32))

        special = np.ones((devices, 4000), np.float32)
        if session.rank == 0:
            special[0, [3, 1500]] = np.nan
            special[-1, [5, 6]] = np.inf
        if session.rank == 1:
            special[-1, [6, 7]] = -np.inf
        got_special = np.asarray(psum_each(mesh, [special])[0])
        digest.update(got_special.tobytes())
        assert np.isnan(got_special[[3, 6, 1500]]).all()
        assert got_special[5] == np.inf
        assert got_special[7] == -np.inf
        assert np.isfinite(np.delete(got_special, [3, 5, 6, 7, 1500])).all()

        # pmap; and a gradient of parameters that every host holds.
        got = jax.pmap(lambda x: jax_passing.psum(x, "i"), axis_name="i", devices=jax.local_devices())(mine)
        check("pmap", got[0], rows, float32)
        np.testing.assert_array_equal(got[0], got[-1])

        def gradient(w: jax.Array, x: jax.Array) -> jax.Array:
            w = jax.lax.pcast(w, "d", to="varying")
            return jax_passing.psum(jax.grad(lambda w: (w * x[0]).sum())(w), "d")

        got = jax.jit(jax.shard_map(gradient, mesh=mesh, in_specs=(P(), P("d")), out_specs=P()))(np.ones((6, 8)), mine)
        check("grad", got.astype(np.float32), rows, float32)

        # A scan, and a loop around a vmap.
        def scanned(x: jax.Array) -> jax.Array:
            def body(total: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
                return total + jax.vmap(lambda v: jax_passing.psum(v, "d"))(row), None

            start = jnp.zeros(x.shape[2:], x.dtype)
            return jax.lax.scan(body, start, x[0])[0]

        got = jax.jit(jax.shard_map(scanned, mesh=mesh, in_specs=P("d"), out_specs=P()))(mine)
        check("scan", got, rows.sum(1), float32)

        stats = session.stats()
    print(f"digest {digest.hexdigest()}")
    print(f"stats {stats}")


main()

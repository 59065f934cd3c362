"""Every dtype, shape and transform, summed over all devices of all hosts: sums.py [local|global] [STRATEGY] [DTYPE...]

local: each host has a mesh of its own devices; global: one mesh over jax.distributed. Every host knows all hosts'
inputs, so each result is compared with numpy's. Prints a digest of all result bits. With names of dtypes only these are
summed by themselves, for tests of what carries sums.
"""

import functools
import hashlib
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing

jax.config.update("jax_enable_x64", True)
NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 bfloat16"
SHAPES = [(), (1,), (7,), (1440,), (1441,), (33, 5, 7), (50_000,)]
FLOAT32 = np.dtype(np.float32)
digest = hashlib.sha256()


def drawn(devices: int, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
    """A row for each device of all hosts."""
    random = np.random.default_rng(seed)
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


def check(name: str, got: Any, rows: np.ndarray, dtype: np.dtype = FLOAT32) -> None:
    got = np.asarray(got)
    digest.update(got.tobytes())
    if dtype == np.bool_:
        np.testing.assert_array_equal(got, rows.astype(np.int32).sum(0), err_msg=name)
    elif np.issubdtype(dtype, np.integer):
        np.testing.assert_array_equal(got, rows.astype(np.uint64).sum(0).astype(dtype), err_msg=name)  # wraps
    else:
        wide = np.complex128 if np.issubdtype(dtype, np.complexfloating) else np.float64
        expected = rows.astype(wide).sum(0)
        np.testing.assert_allclose(got.astype(wide), expected, rtol=0, atol=bound(rows, dtype), err_msg=name)


def main(deployment: str, strategy: str | None, names: list[str]) -> None:
    if deployment == "global":
        jax.distributed.initialize(
            os.environ["COORDINATOR"], int(os.environ["JAX_PASSING_WORLD_SIZE"]), int(os.environ["JAX_PASSING_RANK"])
        )
    warnings.simplefilter("error", jax_passing.errors.InsideHostWarning)
    with jax_passing.init(axis_name=("d", "i") if deployment == "local" else None) as session:
        local, devices = jax.local_device_count(), session.world_size * jax.local_device_count()
        mesh = jax.sharding.Mesh(jax.devices() if deployment == "global" else jax.local_devices(), ("d",))
        mine = slice(session.rank * local, (session.rank + 1) * local)

        def psum(tree: Any, axis: str = "d") -> Any:
            return jax_passing.psum(tree, axis, strategy=strategy)

        def prepared(body: Callable[..., Any], out_specs: P = P(), check_vma: bool = True, equal: int = 0) -> Any:
            """A function of a tree of arrays with a row for each device of all hosts, and of `equal` others."""
            sharding = jax.sharding.NamedSharding(mesh, P("d"))
            specs = (P("d"), *[P()] * equal)
            mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=check_vma))

            def run(rows: Any, *others: Any) -> Any:
                own = jax.tree.map(lambda each: each[mine], rows)
                on_mesh = functools.partial(jax.make_array_from_process_local_data, sharding)
                result = mapped(jax.tree.map(on_mesh, own), *others)
                return np.concatenate([shard.data for shard in result.addressable_shards]) if out_specs else result

            return run

        dtypes = [jnp.dtype(name) for name in names or NAMES.split()]
        # Several in one program, as to compile takes longer than to sum. The empty ones by themselves: jaxlib 0.11.2
        # crashes when it compiles a program with an empty and another sum, be it jax.lax's.
        programs = [[(shape, dtype) for shape in SHAPES] for dtype in dtypes] + [[((0,), dtype) for dtype in dtypes]]
        for seed, cases in enumerate(programs):
            several = [drawn(devices, *case, seed) for case in cases]
            sums = prepared(lambda xs: [psum(x[0]) for x in xs], check_vma=bool(seed % 2))(several)
            for case, rows, got in zip(cases, several, sums, strict=True):
                check(f"{case}", got, rows, case[1])

        # A tree of leaves of several dtypes, some empty, one a strided view; pmean; NaN and infinities.
        rows = drawn(devices, (6, 8), FLOAT32, 100)

        def tree(x: jax.Array) -> dict[str, jax.Array]:
            x = x[0]
            return psum({"a": x, "b": [x[::2, 1::3], x[:0]], "c": x.astype(jnp.bfloat16), "d": x[0, 0]})

        got = prepared(tree)(rows)
        check("tree a", got["a"], rows)
        check("tree view", got["b"][0], rows[:, ::2, 1::3])
        assert got["b"][1].shape == (0, 8)
        check("tree bfloat16", got["c"], rows.astype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.bfloat16))
        check("tree scalar", got["d"], rows[:, 0, 0])
        mean = prepared(lambda x: jax_passing.pmean(x[0], "d", strategy=strategy))(rows)
        np.testing.assert_allclose(mean, rows.mean(0), atol=bound(rows, FLOAT32))

        total = prepared(lambda x: psum(x[0]))
        special = np.ones((devices, 4000), np.float32)
        special[0, [3, 1500]] = np.nan
        special[local - 1, [5, 6]] = np.inf
        special[-1, [6, 7]] = -np.inf
        got = np.asarray(total(special))
        digest.update(got.tobytes())
        assert np.isnan(got[[3, 6, 1500]]).all()
        assert got[5] == np.inf
        assert got[7] == -np.inf
        assert np.isfinite(np.delete(got, [3, 5, 6, 7, 1500])).all()

        # Gradients: of parameters that every host holds, and of sum(psum(x)^2), each device's 2 psum(x), summed again.
        def gradient(x: jax.Array, w: jax.Array) -> jax.Array:
            w = jax.lax.pcast(w, "d", to="varying")
            return psum(jax.grad(lambda w: (w * x[0]).sum())(w))

        check("grad", np.asarray(prepared(gradient, equal=1)(rows, np.ones((6, 8)))).astype(np.float32), rows)
        got = prepared(jax.grad(lambda x: (psum(x) ** 2).sum()), P("d"), check_vma=False)(rows)
        np.testing.assert_allclose(got, np.tile(2 * devices * rows.sum(0), (local, 1, 1)), rtol=1e-4, atol=1e-2)

        # A scan around a vmap; several sums in flight, step after step.
        def scanned(x: jax.Array) -> jax.Array:
            def body(total: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
                return total + jax.vmap(psum)(row), None

            return jax.lax.scan(body, jnp.zeros(x.shape[2:], x.dtype), x[0])[0]

        check("scan", prepared(scanned)(rows), rows.sum(1))
        weights = np.arange(1, 7, dtype=np.float32)[:, None]
        step = prepared(lambda x: sum(psum(x[0, i]) * (i + 1) for i in range(6)))
        got = np.asarray([step(rows) for _ in range(20)][-1])
        digest.update(got.tobytes())
        np.testing.assert_allclose(got, (rows * weights).sum((0, 1)), rtol=1e-4, atol=1e-2)

        if deployment == "local":
            got = jax.pmap(lambda x: psum(x, "i"), axis_name="i", devices=jax.local_devices())(rows[mine])
            np.testing.assert_array_equal(got, np.tile(total(rows), (local, 1, 1)))
        stats = session.stats()
    print(f"digest {digest.hexdigest()}")
    print(f"packets {stats['packets_sent'] - stats['packets_resent']}")


arguments = sys.argv[1:]
deployment = arguments.pop(0) if arguments[:1] in (["local"], ["global"]) else "local"
strategy = arguments.pop(0) if arguments[:1] in (["flat"], ["passing"], ["native"], ["auto"]) else None
main(deployment, strategy, arguments)

"""One strategy in one deployment: values, gradients and loops, beside what every host knows all hosts' inputs to give.

    strategies.py STRATEGY local|global

local: each host has a mesh of its own devices; global: one mesh over jax.distributed. Prints a digest of the result's
bits, which must be the same on all hosts.
"""

import functools
import hashlib
import os
import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing

jax.config.update("jax_enable_x64", True)
FLOATS = ["float16", "float32", "float64", "complex64"]
DTYPES = [*map(np.dtype, ["bool", "int8", "int32", "int64", "uint16", *FLOATS]), np.dtype(ml_dtypes.bfloat16)]


def main() -> None:
    strategy, deployment = sys.argv[1:]
    if deployment == "global":
        jax.distributed.initialize(
            os.environ["COORDINATOR"], int(os.environ["JAX_PASSING_WORLD_SIZE"]), int(os.environ["JAX_PASSING_RANK"])
        )
    digest = hashlib.sha256()
    warnings.simplefilter("error", jax_passing.errors.InsideHostWarning)
    with jax_passing.init(axis_name="d" if deployment == "local" else None) as session:
        local, ranks = jax.local_device_count(), session.world_size * jax.local_device_count()
        mesh = jax.sharding.Mesh(jax.devices() if deployment == "global" else jax.local_devices(), ("d",))
        mine = slice(session.rank * local, (session.rank + 1) * local)

        def run(body, rows: Any, out_specs: P = P(), check_vma: bool = False) -> Any:
            """`rows`: a tree of arrays with a row for each device of all hosts."""
            sharding = jax.sharding.NamedSharding(mesh, P("d"))
            mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=out_specs, check_vma=check_vma))
            own = jax.tree.map(lambda each: each[mine], rows)
            result = mapped(jax.tree.map(functools.partial(jax.make_array_from_process_local_data, sharding), own))
            return np.concatenate([shard.data for shard in result.addressable_shards]) if out_specs else result

        def psum(x: jax.Array) -> jax.Array:
            return jax_passing.psum(x, "d", strategy=strategy)

        random = np.random.default_rng(0)
        for index, dtype in enumerate(DTYPES):
            several = []
            for size in (1, 1441, 50_000):
                rows = random.normal(size=(ranks, size)) * 20
                several.append((rows > 0 if dtype == np.bool_ else rows).astype(dtype))
            sums = run(lambda xs: [psum(x[0]) for x in xs], several, check_vma=bool(index % 2))
            for rows, got in zip(several, map(np.asarray, sums), strict=True):
                digest.update(got.tobytes())
                if dtype.kind in "biu":
                    expected = rows.astype(np.uint64).sum(0).astype(np.int32 if dtype == np.bool_ else dtype)
                    np.testing.assert_array_equal(got, expected, err_msg=dtype.name)
                else:
                    wide = np.complex128 if dtype.kind == "c" else np.float64
                    digits = {"float16": 11, "bfloat16": 8, "float32": 23, "complex64": 23, "float64": 46}[dtype.name]
                    tolerance = float(np.abs(rows.astype(wide)).max()) * ranks * 2.0**-digits
                    expected = rows.astype(wide).sum(0)
                    np.testing.assert_allclose(got.astype(wide), expected, rtol=0, atol=tolerance, err_msg=dtype.name)

        rows = random.normal(size=(ranks, 6, 500)).astype(np.float32)
        rows[0, 0, 3], rows[-1, 0, 5] = np.nan, np.inf
        got = np.asarray(run(lambda x: psum(x[0]), rows))
        digest.update(got.tobytes())
        assert np.isnan(got[0, 3])
        assert got[0, 5] == np.inf
        assert np.isfinite(got).sum() == got.size - 2

        rows = random.normal(size=(ranks, 6, 500)).astype(np.float32)
        mean = np.asarray(run(lambda x: jax_passing.pmean(x[0], "d", strategy=strategy), rows))
        np.testing.assert_allclose(mean, rows.mean(0), atol=1e-5)

        def loss_gradient(x: jax.Array) -> jax.Array:  # of sum(psum(x)^2): every device's 2 psum(x), summed again
            return jax.grad(lambda v: jnp.sum(psum(v) ** 2))(x)

        got = run(loss_gradient, rows, P("d"))
        np.testing.assert_allclose(got, np.tile(2 * ranks * rows.sum(0), (local, 1, 1)), rtol=1e-4, atol=1e-2)

        def scanned(x: jax.Array) -> jax.Array:
            total = jnp.zeros(x.shape[2:], x.dtype)
            return jax.lax.scan(lambda total, row: (total + psum(row), None), total, x[0])[0]

        np.testing.assert_allclose(run(scanned, rows), rows.sum((0, 1)), rtol=1e-4, atol=1e-4)

        # Several sums in flight, step after step.
        def several(x: jax.Array) -> jax.Array:
            return sum(psum(x[0, i]) * (i + 1) for i in range(6))

        expected = (rows * np.arange(1, 7, dtype=np.float32)[:, None]).sum((0, 1))
        for _ in range(20):
            got = np.asarray(run(several, rows))
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
        digest.update(got.tobytes())
        stats = session.stats()
    print(f"digest {digest.hexdigest()}")
    print(f"packets {stats['packets_sent'] - stats['packets_resent']}")


main()

"""Compares collectives other than sums with numpy, and with jax.lax over one vmap of all devices' values.

    collectives.py SEED local|global

local: each host has a mesh of its own devices; global: one mesh over jax.distributed.
"""

import os
import sys
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing

jax.config.update("jax_enable_x64", True)
INTEGERS = [np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
DTYPES = [*INTEGERS, *map(np.dtype, ["bool", "float16", "float32", "float64", ml_dtypes.bfloat16])]
COMPLEX = [np.dtype(np.complex64), np.dtype(np.complex128)]


def any_bits(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if dtype == np.bool_:
        return random.integers(0, 2, shape).astype(dtype)
    return random.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]


def widened(array: np.ndarray) -> np.ndarray:
    """As numpy can compare it: it doesn't know NaN in some of the narrow types."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        return array if array.dtype.kind in "biu" else array.astype(np.float64)


def main() -> None:
    seed, deployment = int(sys.argv[1]), sys.argv[2]
    print(f"seed {seed}")
    spans = deployment == "global"
    if spans:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            os.environ["COORDINATOR"], int(os.environ["JAX_PASSING_WORLD_SIZE"]), int(os.environ["JAX_PASSING_RANK"])
        )
    random = np.random.default_rng(seed)  # the same on all hosts, which all know all devices' values
    warnings.simplefilter("error", jax_passing.errors.InsideHostWarning)
    with jax_passing.init(axis_name=() if spans else ("d", "v")) as session:
        local, rank, hosts = jax.local_device_count(), session.rank, session.world_size
        count = local * hosts
        mesh = jax.sharding.Mesh(jax.devices() if spans else jax.local_devices(), ("d",))
        mine = slice(rank * local, (rank + 1) * local)

        def run(body, rows: np.ndarray, check_vma: bool) -> np.ndarray:
            """`rows`: the values of all devices; returns the results of this host's, one after the other."""
            sharding = jax.sharding.NamedSharding(mesh, P("d"))

            def of_row(x: jax.Array) -> jax.Array:
                return jax.tree.map(lambda y: y[None], body(x[0]))

            mapped = jax.shard_map(of_row, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=check_vma)
            given = jax.make_array_from_process_local_data(sharding, rows[mine])

            def fetch(array: jax.Array) -> np.ndarray:
                shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start)
                return np.concatenate([np.asarray(shard.data) for shard in shards])

            return jax.tree.map(fetch, jax.jit(mapped)(given))

        # axis_index tells the devices apart.
        np.testing.assert_array_equal(
            run(lambda x: jax_passing.axis_index("d") + 0 * x.astype(np.int32), np.zeros(count), False),
            np.arange(count)[mine],
        )

        # Every dtype, and every bit of it.
        for number, dtype in enumerate([*DTYPES, *COMPLEX]):
            rows = any_bits(random, (count, 3, 501), dtype)
            root = int(random.integers(count))

            def moved(x: jax.Array, root: int = root) -> tuple[jax.Array, ...]:
                return (
                    jax_passing.all_gather(x, "d"),
                    jax_passing.all_gather(x, "d", axis=1, tiled=True),
                    jax_passing.broadcast(x, "d", root=root),
                )

            gathered, tiled, broadcast = run(moved, rows, bool(number % 2))
            for k in range(local):
                assert gathered[k].tobytes() == rows.tobytes(), dtype
                assert tiled[k].tobytes() == np.concatenate(rows, axis=1).tobytes(), dtype
                assert broadcast[k].tobytes() == rows[root].tobytes(), dtype
            if dtype in COMPLEX:
                continue

            def extremes(x: jax.Array) -> tuple[jax.Array, jax.Array]:
                return jax_passing.pmax(x, "d"), jax_passing.pmin(x, "d")

            for got, reduce in zip(run(extremes, rows, bool(number % 2)), (np.maximum, np.minimum), strict=True):
                expected = reduce.reduce(widened(rows), axis=0)
                for k in range(local):
                    np.testing.assert_array_equal(widened(got[k]), expected, err_msg=str(dtype))

        # Numbers that only their lower halves tell apart.
        for dtype in (np.dtype(np.int64), np.dtype(np.uint64)):
            rows = ((5 << 32) + random.integers(0, 2**32, (count, 100))).astype(dtype)
            np.testing.assert_array_equal(run(lambda x: jax_passing.pmax(x, "d"), rows, False)[0], rows.max(0))
            np.testing.assert_array_equal(run(lambda x: jax_passing.pmin(x, "d"), rows, False)[0], rows.min(0))

        # psum_scatter.
        for dtype in (np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.int64)):
            rows = (random.normal(size=(count, 7, 2 * count)) * 100).astype(dtype)

            def scatter(x: jax.Array) -> jax.Array:
                return jax_passing.psum_scatter(x, "d", scatter_dimension=1, tiled=True)

            expected = np.split(rows.astype(np.float64).sum(0), count, axis=1)[mine]
            np.testing.assert_allclose(
                run(scatter, rows, dtype == np.int32), expected, atol=0 if dtype.kind == "i" else 1e-3
            )

        # Derivatives: as of jax.lax over one axis that has all devices.
        rows = random.normal(size=(count, 3, 2 * count))
        weights = random.normal(size=(count, 3, 2 * count))

        def program(gather, scatter, broadcast, index):
            def f(x: jax.Array) -> jax.Array:
                weight = jnp.asarray(weights)[index()]
                total = scatter(gather(jnp.sin(x)).sum(0) * x)  # [3, 2]
                return (total * weight[:, :2]).sum() * jnp.cos(broadcast(x**2)).sum()

            return f

        def of_lax(broadcast):
            return program(
                lambda x: jax.lax.all_gather(x, "all"),
                lambda x: jax.lax.psum_scatter(x, "all", scatter_dimension=1, tiled=True),
                broadcast,
                lambda: jax.lax.axis_index("all"),
            )

        def lax_broadcast(x: jax.Array) -> jax.Array:
            return jax.lax.psum(jnp.where(jax.lax.axis_index("all") == count - 2, x, 0), "all")

        ours = program(
            lambda x: jax_passing.all_gather(x, "d"),
            lambda x: jax_passing.psum_scatter(x, "d", scatter_dimension=1, tiled=True),
            lambda x: jax_passing.broadcast(x, "d", root=count - 2),
            lambda: jax_passing.axis_index("d"),
        )
        over_all = jax.vmap(of_lax(lax_broadcast), axis_name="all")
        value = over_all(rows)
        tangent = jax.jvp(over_all, (rows,), (np.cos(rows),))[1]
        # Gradients are those of the sum of all devices' losses.
        slope = jax.grad(lambda x: over_all(x).sum())(rows)
        for check_vma in (False, True):
            np.testing.assert_allclose(run(ours, rows, check_vma), value[mine], rtol=1e-9)
            got = run(lambda x: jax.jvp(ours, (x,), (jnp.cos(x),))[1], rows, check_vma)
            np.testing.assert_allclose(got, tangent[mine], rtol=1e-8)
            got = run(jax.grad(ours), rows, check_vma)
            np.testing.assert_allclose(got, slope[mine], rtol=1e-7, atol=1e-9)

        if not spans:
            # An axis of vmap that continues over the hosts, beside one of the mesh.
            rows = random.normal(size=(hosts, 5, 4)).astype(np.float32)
            own = rows[rank]

            def over_v(f):
                return np.asarray(jax.jit(jax.vmap(f, axis_name="v"))(own))

            assert over_v(lambda x: jax_passing.all_gather(x, "v"))[3].tobytes() == rows.tobytes()
            np.testing.assert_array_equal(over_v(lambda x: jax_passing.pmax(x, "v"))[0], rows.max((0, 1)))
            root = hosts * 5 - 2
            assert over_v(lambda x: jax_passing.broadcast(x, "v", root=root))[1].tobytes() == rows[-1, 3].tobytes()

        # Between hosts, outside of jit.
        values = [
            {"a": any_bits(random, (3, 70), dtype), "b": int(random.integers(1000))}
            for dtype in INTEGERS
            for _ in range(hosts)
        ]
        for number, dtype in enumerate(INTEGERS):
            of_hosts = values[number * hosts : (number + 1) * hosts]
            total = jax_passing.process_sum(of_hosts[rank])
            expected = sum(each["a"].astype(np.uint64) for each in of_hosts).astype(dtype)
            np.testing.assert_array_equal(total["a"], expected)
            assert total["a"].dtype == dtype
            assert total["b"] == sum(each["b"] for each in of_hosts)
        floats = random.normal(size=(hosts, 100))
        np.testing.assert_allclose(jax_passing.process_sum(floats[rank]), floats.sum(0), rtol=1e-12, atol=1e-12)

        # On several threads, each with an order of its own.
        totals: dict[str, list[int]] = {}

        def beside(name: str) -> None:
            with jax_passing.stream(name):
                totals[name] = [int(jax_passing.process_sum(len(name) * 100 + rank + k)) for k in range(20)]

        threads = [threading.Thread(target=beside, args=(name,)) for name in ("one", "three")]
        for thread in threads:
            thread.start()
        main_totals = [int(jax_passing.process_sum(rank + k)) for k in range(20)]
        for thread in threads:
            thread.join(60)
        ranks = hosts * (hosts - 1) // 2
        assert main_totals == [hosts * k + ranks for k in range(20)]
        assert totals == {n: [hosts * (len(n) * 100 + k) + ranks for k in range(20)] for n in ("one", "three")}

        # Nobody leaves a barrier before all have come. (The hosts of this test share a clock.)
        for turn in range(5):
            if turn % hosts == rank:
                time.sleep(0.1)
            times = np.zeros((hosts, 2))
            times[rank, 0] = time.monotonic()
            jax_passing.barrier()
            times[rank, 1] = time.monotonic()
            came, left = jax_passing.process_sum(times).T
            assert came.max() < left.min() + 1e-6
    print("collectives done")


main()

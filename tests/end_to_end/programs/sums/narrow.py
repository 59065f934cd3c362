"""Sums on narrow wires and of small integers, beside what every host knows all hosts' inputs to give.

    narrow.py SIZE

SIZE is that of the largest arrays. Prints a digest of the results' bits, which must be the same on all hosts.
"""

import hashlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.errors import ConfigError

BITS = {"int16": 16, "int8": 8, "int4": 4}
BLOCK = 1440
SIGNIFICANT = {"float32": 24, "float16": 11, "bfloat16": 8}


def bounds(hosts: np.ndarray, bits: int, finest: float) -> np.ndarray:
    """Returns by how much each element of the sum of the hosts' elements may be off: H units, each of which is M / Q;
    M is at most `finest` times the largest element of the block. `hosts`: [hosts, elements]."""
    count, size = hosts.shape
    largest = (2 ** (bits - 1) - 1) // count
    blocks = np.abs(np.pad(hosts, ((0, 0), (0, -size % BLOCK)))).reshape(count, -1, BLOCK).max((0, 2))
    return np.repeat(count * finest * blocks / largest, BLOCK)[:size]


def check(rows: np.ndarray, got: Any, hosts: int, wire: str, finest: float = 1.125) -> None:
    """`rows`: [devices, elements]."""
    parts = [np.real, np.imag] if rows.dtype.kind == "c" else [np.asarray]
    for part in parts:
        own, got_part = part(rows), np.asarray(part(np.asarray(got)))
        mine = own.astype(np.float64).reshape(hosts, -1, own.shape[-1]).sum(1)
        wide = np.repeat(mine, 2, 1) if len(parts) == 2 else mine  # a block of a complex array has half as many
        bound = bounds(wide, BITS[wire], finest)[:: len(parts)]
        if len(parts) == 2:  # its real and imaginary elements share blocks
            both = np.stack([np.real(rows), np.imag(rows)], -1).reshape(*rows.shape[:-1], -1).astype(np.float64)
            bound = bounds(both.reshape(hosts, -1, both.shape[-1]).sum(1), BITS[wire], finest)[::2]
        exact = mine.sum(0)
        step = np.abs(exact) * 2.0 ** -SIGNIFICANT.get(rows.dtype.name, 24) * 2 + bound * 1e-3
        error = np.abs(got_part.astype(np.float64) - exact)
        assert (error <= bound + step).all(), (wire, rows.dtype, float((error - bound).max()))
        assert (got_part[exact == 0] == 0).all() or (mine != 0)[:, exact == 0].any()
        if exact.size > 1000:
            assert error.max() > 0  # it is narrow


def main() -> None:
    size = int(sys.argv[1])
    digest = hashlib.sha256()
    with jax_passing.init(axis_name="d") as session:
        local = jax.local_device_count()
        ranks = session.world_size * local
        hosts = ranks if session.device_ranks else session.world_size  # those that round
        mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
        mine = slice(session.rank * local, (session.rank + 1) * local)

        def run(body: Any, rows: Any, out_specs: P = P()) -> Any:
            """`rows`: a tree of arrays with a row for each device of all hosts."""
            mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=out_specs, check_vma=False))
            result = mapped(jax.tree.map(lambda each: each[mine], rows))
            for leaf in jax.tree.leaves(result):
                digest.update(np.asarray(leaf).tobytes())
            return jax.tree.map(np.asarray, result)

        def psum(x: Any, wire: str) -> Any:
            return jax_passing.psum(x, "d", wire_dtype=wire)

        random = np.random.default_rng(0)
        dtypes = [np.dtype(each) for each in ("float32", "float16", ml_dtypes.bfloat16, "complex64")]
        trees = {}
        for wire in BITS:
            trees[wire] = {}
            for dtype in dtypes:
                for elements in (1, 7, 1441, size):
                    row = random.normal(size=(ranks, elements)) * (1 + session.world_size)
                    if dtype.kind == "c":
                        row = row + 1j * random.normal(size=row.shape)
                    row[:, elements // 2] = 0
                    trees[wire][f"{dtype.name}{elements}"] = row.astype(dtype)
        sums = run(lambda trees: {w: psum(jax.tree.map(lambda x: x[0], tree), w) for w, tree in trees.items()}, trees)
        for wire, tree in trees.items():
            for name, rows in tree.items():
                assert sums[wire][name].dtype == rows.dtype
                check(rows, sums[wire][name], hosts, wire)

        # Small sums guess their scales, which are powers of two. Large ones and tiny ones, too.
        for step in range(6):
            rows = (random.normal(size=(ranks, 700)) * (1 + step / 100)).astype(np.float32)
            scaled = {"huge": rows * np.float32(2.0**120), "tiny": rows * np.float32(2.0**-120), "plain": rows}
            for name, got in run(lambda x: {key: psum(each[0], "int8") for key, each in x.items()}, scaled).items():
                check(scaled[name], got, hosts, "int8", 2)

        # Each step of a loop is rounded by other random bits, so their mean is the sum.
        steps = 300
        rows = random.normal(size=(ranks, 500)).astype(np.float32)

        def mean(x: jax.Array, wire: str) -> jax.Array:
            add = lambda total, _: (total + psum(x[0], wire), None)  # noqa: E731
            return jax.lax.scan(add, jnp.zeros_like(x[0]), None, length=steps)[0] / steps

        for wire in BITS:
            got = run(lambda x, wire=wire: mean(x, wire), rows)
            exact = rows.astype(np.float64).sum(0)
            unit = bounds(rows.astype(np.float64).reshape(hosts, -1, rows.shape[-1]).sum(1), BITS[wire], 2) / hosts
            # A rank's rounding has a standard deviation of half a unit at most; 6 of the mean's are never reached.
            assert (np.abs(got - exact) <= 6 * 0.5 * (hosts / steps) ** 0.5 * unit + 1e-5).all(), wire

        # Derivatives are sums on the same wire; what is mapped is one sum.
        rows = random.normal(size=(ranks, 4, 500)).astype(np.float32)
        got = run(
            lambda x: jax.grad(lambda v: jnp.vdot(psum(v, "int16"), jnp.arange(500.0)))(x[0, 0])[None], rows, P("d")
        )
        np.testing.assert_allclose(
            got, np.tile(ranks * np.arange(500.0), (local, 1)), atol=hosts * local * 1000 / 10000
        )
        got = run(lambda x: jax.vmap(lambda v: psum(v, "int16"))(x[0]), rows)
        check(rows.reshape(ranks, -1), got.reshape(-1), hosts, "int16", 2)
        got = run(lambda x: jax_passing.pmean(x[0, 0], "d", wire_dtype="int16"), rows)
        check(rows[:, 0], got * ranks, hosts, "int16", 2)

        rows = random.normal(size=(ranks, 3000)).astype(np.float32)
        rows[0, 3], rows[-1, 5], rows[0, 7], rows[-1, 7] = np.nan, np.inf, np.inf, -np.inf
        got = run(lambda x: psum(x[0], "int4"), rows)
        assert np.isnan(got[[3, 7]]).all()
        assert got[5] == np.inf
        assert np.isfinite(got).sum() == got.size - 3

        # Small integers are exact on any wire.
        integers = {
            name: random.integers(0, 2**64, (ranks, size), np.uint64).astype(name) for name in ("int8", "uint16")
        }
        integers |= {name: random.integers(0, 2**64, (ranks, 7), np.uint64).astype(name) for name in ("uint8", "int16")}
        for name, got in run(lambda x: psum(jax.tree.map(lambda each: each[0], x), "int4"), integers).items():
            np.testing.assert_array_equal(got, integers[name].astype(np.uint64).sum(0).astype(name), err_msg=name)

        for options, text in (
            ({"wire_dtype": "int9"}, "Known are full, int16, int8, int4"),
            ({"wire_dtype": "int8", "strategy": "native"}, "strategy.*native"),
        ):
            with pytest.raises(ConfigError, match=text):
                run(lambda x, options=options: jax_passing.psum(x, "d", **options), rows)
        stats = session.stats()
    bits = []
    for seed in (1, 1, 2):
        with jax_passing.init(axis_name="d", seed=seed):
            mapped = jax.shard_map(
                lambda x: psum(x[0], "int8"), mesh=mesh, in_specs=P("d"), out_specs=P(), check_vma=False
            )
            bits.append(np.asarray(jax.jit(mapped)(rows[mine])).tobytes())
    assert bits[0] == bits[1] != bits[2]
    print(f"digest {digest.hexdigest()}")
    print(f"guesses {stats['guesses_right']}")


main()

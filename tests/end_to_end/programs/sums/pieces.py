"""Sums of several MiB, which a GPU copies in pieces, some with NaN and infinities. Prints a digest of all bits."""

import hashlib

import jax
import ml_dtypes
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing

SIZES = (1_300_001, 3, 900_000)  # 8.8 MB of 32 bits, half of that of 16; the second leaf is beside others in a piece
STEPS = 3


def inputs(rank: int, step: int) -> dict[str, list[np.ndarray]]:
    random = np.random.default_rng([step, rank])
    floats = [random.normal(size=size).astype(np.float32) for size in SIZES]
    if step == 1:
        floats[0][[rank, 700_000]] = np.nan, np.inf
        floats[2][-1 - rank] = -np.inf
    integers = [random.integers(-(2**31), 2**31, size, dtype=np.int32) for size in SIZES]
    halves = [each.astype(ml_dtypes.bfloat16) for each in floats]
    return {"float": floats, "half": halves, "int": integers}


def main() -> None:
    digest = hashlib.sha256()
    with jax_passing.init(axis_name="d") as session:
        mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))

        def total(tree: dict[str, list[jax.Array]]) -> dict[str, list[jax.Array]]:
            return jax_passing.psum(tree, "d")

        step = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False))
        for number in range(STEPS):
            hosts = [inputs(rank, number) for rank in range(session.world_size)]
            sums = jax.tree.map(np.asarray, step(hosts[session.rank]))
            for index in range(len(SIZES)):
                integers = np.add.reduce([host["int"][index] for host in hosts * mesh.size], dtype=np.int32)  # wraps
                np.testing.assert_array_equal(sums["int"][index], integers)
                with np.errstate(invalid="ignore"):
                    floats = np.add.reduce([host["float"][index].astype(np.float64) for host in hosts * mesh.size])
                # The numbers are below 8, and alike on each of the host's devices, one or two: the unit is 2^-27 times
                # their number (docs/internals/fixed_point.md), and the result is rounded once.
                np.testing.assert_allclose(
                    sums["float"][index], floats, rtol=2.0**-24, atol=session.world_size * mesh.size * 2**-27
                )
            for leaf in jax.tree.leaves(sums):
                digest.update(leaf.tobytes())
    print("digest", digest.hexdigest())


main()

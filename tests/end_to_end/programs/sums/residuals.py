"""Sums with residuals over all hosts, each of which draws from its rank: nothing is lost but what the residuals say.

The argument is the wire, "full" or one of few bits.
"""

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.collective.psum import psum_with_residuals
from jax_passing.errors import UsageError

WIRE = sys.argv[1]
COUNT, STEPS = 3000, 6


def drawn(rank: int, step: int = 0) -> np.ndarray:
    """Returns float32[device, COUNT], of 12 bits each, whose sums over devices are exact; from 2^-25 to 2^12."""
    random = np.random.default_rng([rank, step])
    mantissas = random.integers(-4095, 4096, (len(jax.local_devices()), COUNT))
    return np.ldexp(mantissas, random.integers(-36, 1, COUNT)).astype(np.float32)


def check(session: Any, check_vma: bool) -> None:
    flat = session.settings.strategy == "flat"
    ranks = range(session.world_size)
    mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
    own = P("d") if flat else P()  # of residuals: where each device is a rank, it has its own

    def mapped(f: Any, out_specs: Any, **options: Any) -> Any:
        return jax.jit(
            jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=out_specs, check_vma=check_vma), **options
        )

    # Each dtype: what was sent and what was kept back are what there was.
    def contribute(x: jax.Array) -> Any:
        tree = {"narrow": x.astype(jnp.bfloat16), "wide": x, "counts": x.astype(jnp.int32), "none": x[:, :0]}
        sums, kept = psum_with_residuals(tree, "d", wire_dtype=WIRE)
        varying = jax.lax.pcast(kept, "d", to="varying") if not flat and check_vma else kept  # hosts have their own
        return sums, kept, jax_passing.psum(tree, "d"), jax_passing.all_gather(varying, "d", tiled=True)

    x = drawn(session.rank)
    sums, kept, plain, everyones = mapped(contribute, (P(), own, P(), P("d")))(x)
    if WIRE == "full":  # else each sum is rounded by bits of its own
        jax.tree.map(np.testing.assert_array_equal, sums, plain)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a.dtype, b.dtype), sums, kept)
    assert not kept["counts"].any()
    assert kept["none"].size == 0
    rows = len(ranks) * len(x)
    lost = {name: np.asarray(each[:rows]).astype(np.float64) for name, each in everyones.items()}
    given = np.concatenate([drawn(rank) for rank in ranks])
    sent = given.astype(np.float64) - lost["wide"]
    assert np.abs(lost["wide"]).max() > 0
    if WIRE == "full":
        np.testing.assert_array_equal(sums["wide"][0], sent.sum(0).astype(np.float32))
    # A number that was sent on a narrow wire isn't a float32, so the residual is rounded, as the sum is.
    off = 2.0**-22 * (np.abs(given).sum(0) + np.abs(lost["wide"]).sum(0))
    assert (np.abs(sums["wide"][0] - sent.sum(0)) <= off).all()
    # A residual of 16 bits is rounded itself, and so is the sum: each by half a step, 2^-8 of it.
    narrow = np.asarray(jnp.asarray(given).astype(jnp.bfloat16)).astype(np.float64)
    sent = (narrow - lost["narrow"]).sum(0)
    off += 2.0**-8 / (1 - 2.0**-8) * np.abs(lost["narrow"]).sum(0)
    off += 2.0**-8 * (np.abs(sent) + off)
    assert (np.abs(np.asarray(sums["narrow"][0]).astype(np.float64) - sent) <= off).all()

    # Error feedback in a loop, whose input is donated: what is left is what was kept back last.
    def train(gradients: jax.Array) -> Any:
        def step(kept: jax.Array, gradient: jax.Array) -> Any:
            total, kept = psum_with_residuals(gradient + kept, "d", wire_dtype=WIRE)
            return (kept if flat or not check_vma else jax.lax.pcast(kept, "d", to="varying")), total

        zero = jax_passing.pvary(jnp.zeros(COUNT), "d") if check_vma else jnp.zeros(COUNT)
        kept, totals = jax.lax.scan(step, zero, gradients[0])
        return totals, jax_passing.all_gather(kept[None], "d", tiled=True)

    steps = jnp.asarray(np.stack([drawn(session.rank, step) for step in range(STEPS)], 1))
    totals, left = mapped(train, (P(), P("d")), donate_argnums=0)(steps)
    wanted = sum(drawn(rank, step).astype(np.float64).sum(0) for rank in ranks for step in range(STEPS))
    left = np.asarray(left[:rows]).astype(np.float64)
    # Each sum, each of the additions, and the host's own sum are rounded to float32.
    rounding = STEPS * (1 + 2 * rows) * 2.0**-24 * 2.0**15 * rows
    assert np.abs(np.asarray(totals).astype(np.float64).sum(0) + left.sum(0) - wanted).max() <= rounding
    # It doesn't grow: with what was kept back before, a host has less than 2^14, and keeps back half a unit at most.
    world_size = rows if flat else len(ranks)
    units = {"full": 2**27, "int8": 127 // world_size, "int4": 7 // world_size}[WIRE]
    assert np.abs(left).max() <= 2.0**13 / units / (1 if flat else len(x)) * (1 + 2.0**-16)

    # vmap over another axis, NaN, and gradients.
    def mapped_twice(x: jax.Array) -> Any:
        return jax.vmap(lambda row: psum_with_residuals(row, "d", wire_dtype=WIRE))(x.reshape(10, -1))

    rows_of = mapped(mapped_twice, (P(), own))(x)
    if WIRE == "full":
        np.testing.assert_array_equal(rows_of[0].reshape(-1), sums["wide"].reshape(-1))
        np.testing.assert_array_equal(rows_of[1].reshape(kept["wide"].shape), kept["wide"])
    spoiled = x.copy()
    spoiled[0, 7], spoiled[-1, 8] = np.nan, np.inf
    with_nan = mapped(functools.partial(psum_with_residuals, axis_name="d", wire_dtype=WIRE), (P(), own))(spoiled)
    assert np.flatnonzero(~np.isfinite(with_nan[0][0])).tolist() == [7, 8]
    assert np.isfinite(with_nan[1]).all()
    finite = np.delete(np.arange(COUNT), [7, 8])
    if WIRE == "full":
        np.testing.assert_array_equal(np.asarray(with_nan[1])[:, finite], np.asarray(kept["wide"])[:, finite])
    assert with_nan[1][0, 7] == 0
    assert with_nan[1][-1, 8] == 0
    try:
        mapped(jax.grad(lambda x: psum_with_residuals(x, "d")[0].sum()), P("d"))(x)
    except UsageError as error:
        assert "psum_with_residuals at residuals.py" in str(error)  # noqa: PT017
    else:
        raise AssertionError("no UsageError")


with jax_passing.init(axis_name="d") as session:
    for checked in (False, True):
        check(session, checked)
    print("residuals right")

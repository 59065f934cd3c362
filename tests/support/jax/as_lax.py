"""Programs with `jax_passing.psum`, which give what the same ones give with `jax.lax.psum`."""

import functools

import jax
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_passing

PSUMS = (jax_passing.psum, jax.lax.psum)
X = np.arange(8 * 6, dtype=np.float32).reshape(8, 6) % 7  # small integers: every order of addition is exact


def mesh_of(*sizes, axis_type=AxisType.Auto):
    return jax.make_mesh(sizes, ("d", "m")[: len(sizes)], axis_types=(axis_type,) * len(sizes))


def sharded(f, mesh, in_specs=P("d"), out_specs=P("d"), **options):
    return jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)


def apart(tree, axis="d", **options):
    """The same sum, started in one place and finished in another."""
    return jax_passing.psum_done(jax_passing.psum_start(tree, axis, **options))


def same(make, *args):
    """`make(psum)` is a function of args; runs it with both, under jit."""
    ours, theirs = (jax.jit(make(psum))(*args) for psum in PSUMS)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), ours, theirs)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), ours) == jax.tree.map(lambda a: (a.shape, a.dtype), theirs)

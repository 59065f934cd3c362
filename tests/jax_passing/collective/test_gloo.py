"""Where JAX's reduce-scatter would go over gloo, programs hold none, and their values stay the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.lib import version as jaxlib_version
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing._compat import jax_collectives

GROUPS = [[0, 3], [2, 1]]


def scatter_and_gather(of, x):
    """Integers are summed, so that the order of additions doesn't count."""
    return [
        of.psum_scatter(x, "p", scatter_dimension=1, tiled=True),
        of.psum_scatter(x, ("q", "p"), scatter_dimension=2),
        of.psum_scatter(x.astype(jnp.bfloat16), "q", scatter_dimension=0, tiled=True),
        jax.vmap(lambda x: of.psum_scatter(x, "q", tiled=True))(x),
        jax.grad(lambda x: jnp.sum(of.all_gather(x, "p") ** 2))(x),
    ]


def in_groups(x):
    return [jax.lax.psum_scatter(x, "p", scatter_dimension=1, tiled=True, axis_index_groups=GROUPS)]


@pytest.mark.skipif(jaxlib_version >= (0, 12), reason="this jaxlib's reduce-scatter over gloo is right")
@pytest.mark.parametrize("of", [jax.lax, jax_passing, None], ids=["lax", "ours", "groups"])
def test_no_reduce_scatter_goes_over_gloo(session, monkeypatch, compiled_fast, check_vma, of) -> None:
    mesh = jax.make_mesh((4, 2), ("p", "q"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows = P(("p", "q"))

    def results(over_gloo):
        def step(x):
            return in_groups(x) if of is None else scatter_and_gather(of, x)

        monkeypatch.setattr(jax_collectives, "over_gloo", lambda: over_gloo)
        f = jax.jit(
            jax.shard_map(step, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=check_vma and of is not None)
        )
        x = jnp.asarray(np.random.default_rng(0).integers(-9, 9, (16, 8, 8)), jnp.float32)
        lowered = f.lower(x)
        return lowered.as_text().count("reduce_scatter"), lowered.compile()(x)

    count, right = results(over_gloo=False)
    none, mended = results(over_gloo=True)
    assert (count > 0, none) == (True, 0)
    for mine, theirs in zip(mended, right, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)

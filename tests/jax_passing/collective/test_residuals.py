"""Sums with residuals on one host, where nothing is lost. tests/end_to_end/sums/test_narrow.py has several hosts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.collective.psum import psum_with_residuals
from jax_passing.errors import UsageError
from jax_passing.host import scope
from support.jax.lowered_sums import calls, lowered, mapped
from support.jax.on_mesh import on_mesh, values

pytestmark = pytest.mark.usefixtures("session")


def test_nothing_is_lost_on_one_host(check_vma):
    tree = {name: jnp.asarray(values(np.dtype(name), (2, 5))) for name in ("float32", "int8", "float16", "complex64")}
    tree |= {"bool": jnp.asarray([[True], [False]]), "none": jnp.ones((2, 0))}
    sums, kept = on_mesh(lambda x: psum_with_residuals(x, "d"), out_specs=P(), check_vma=check_vma)(tree)
    plain = on_mesh(lambda x: jax_passing.psum(x, "d"), out_specs=P(), check_vma=check_vma)(tree)
    jax.tree.map(np.testing.assert_array_equal, sums, plain)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.zeros_like(a), b), sums, kept)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), sums) == jax.tree.map(lambda a: (a.shape, a.dtype), kept)


def test_sums_inside_the_host_and_those_of_jax_lose_nothing(check_vma):
    def both(x):
        return psum_with_residuals(x, "d", strategy="native"), psum_with_residuals(x, ())

    with scope.within(scope.of_thread()._replace(axis_names=("other",))):  # and so "d" stays inside this host
        (total, kept), (own, nothing) = on_mesh(both, out_specs=((P(), P()), (P("d"), P("d"))), check_vma=check_vma)(
            jnp.arange(4.0)
        )
    assert total.tolist() == [2, 4]
    assert own.tolist() == [0, 1, 2, 3]
    assert not kept.any()
    assert not nothing.any()


def test_many_buckets_are_held_behind_each_other():
    tree = [jnp.full((2, 300_000), float(i)) for i in range(3)]
    f = on_mesh(lambda x: psum_with_residuals(x, "d", bucket_bytes=1), out_specs=P())
    sums, kept = f(tree)
    assert [each[0, 7].item() for each in sums] == [0, 2, 4]
    assert not any(each.any() for each in kept)


def test_over_an_axis_of_vmap(check_vma):
    def rows(x):
        return jax.vmap(lambda row: psum_with_residuals(row, ("v", "d")), axis_name="v")(x)

    (total, kept) = on_mesh(rows, out_specs=P(), check_vma=check_vma)(jnp.arange(12.0).reshape(6, 2))
    assert total.tolist() == [[30, 36]] * 3
    assert kept.tolist() == [[0, 0]] * 3


def test_residuals_of_ranks_of_their_own_vary(check_vma):
    flat = scope.of_thread()._replace(strategy="flat", device_ranks=2)
    with scope.within(flat):
        f = on_mesh(lambda x: psum_with_residuals(x, "d"), out_specs=(P(), P("d")), check_vma=check_vma)
        assert jax.eval_shape(f, jnp.ones(4))[1].shape == (4,)
        if check_vma:
            with pytest.raises(ValueError, match="out_specs"):
                jax.eval_shape(
                    on_mesh(lambda x: psum_with_residuals(x, "d"), out_specs=P(), check_vma=True), jnp.ones(4)
                )


def test_there_is_no_gradient(check_vma):
    f = on_mesh(lambda x: psum_with_residuals(x, "d")[0] + x, check_vma=check_vma)
    with pytest.raises(UsageError, match="psum_with_residuals at test_residuals.py.*stop_gradient"):
        jax.grad(lambda x: f(x).sum())(jnp.ones(4))
    g = on_mesh(lambda x: psum_with_residuals(jax.lax.stop_gradient(x), "d")[0] * x, check_vma=check_vma)
    assert jax.grad(lambda x: g(x).sum())(jnp.ones(4)).tolist() == [2] * 4


def test_on_gpu_residuals_have_arrays_of_their_own():
    text = lowered(mapped(lambda x: psum_with_residuals(x, "d")), jnp.ones((8, 1 << 20)))  # enough for slices
    ((_, operands, _, aliases),) = calls(text, "passing_psum")
    assert len(operands) == 3
    assert aliases == [("1", "1"), ("2", "2")]
    assert "residuals=1" in text
    assert "slice_elements=0" in text


def test_what_is_refused():
    with pytest.raises(UsageError, match="psum_with_residuals of "):
        on_mesh(lambda x: psum_with_residuals(x, "d"))(jnp.ones(4, jnp.float8_e5m2))

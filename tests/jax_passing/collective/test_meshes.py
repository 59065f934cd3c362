"""Sums on every kind of mesh, with `jax_passing.psum` and with `jax.lax.psum`."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_passing
from support.jax.as_lax import PSUMS, X, mesh_of, same, sharded

pytestmark = pytest.mark.usefixtures("session")


@pytest.mark.parametrize("axes", ["d", "m", ("d", "m"), ("m", "d")])
def test_two_dimensional_mesh(check_vma, axes):
    left = [name for name in ("d", "m") if name not in axes]

    def make(psum):
        def inside(x):
            return psum({"x": x, "y": x + 1}, axes)

        out = P(*(name if name in left else None for name in ("d", "m")))
        return sharded(inside, mesh_of(4, 2), in_specs=P("d", "m"), check_vma=check_vma, out_specs=out)

    same(make, X)

    def make_grad(psum):
        return jax.grad(lambda x: sum((leaf**3).sum() for leaf in jax.tree.leaves(make(psum)(x))))

    same(make_grad, X)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_partial_auto(check_vma, axis_type):
    mesh = jax.make_mesh((4, 2), ("d", "m"), axis_types=(axis_type,) * 2)

    def make(psum):
        def inside(x):
            return psum(x * 2, "d") + 1

        return sharded(inside, mesh, axis_names={"d"}, check_vma=check_vma, out_specs=P())

    def make_grad(psum):
        return jax.grad(lambda x: (make(psum)(x) ** 2).sum())

    x = jax.device_put(X, jax.NamedSharding(mesh, P("d", "m")))
    same(make, x)
    same(make_grad, x)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_mesh_from_the_context(check_vma, axis_type):
    with jax.set_mesh(jax.make_mesh((8,), ("d",), axis_types=(axis_type,))):
        x = jax.device_put(X, P("d"))
        same(lambda psum: jax.shard_map(lambda x: psum(x, "d"), in_specs=P("d"), out_specs=P(), check_vma=check_vma), x)


def test_abstract_mesh(check_vma):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Explicit,))
    x = jax.device_put(X, jax.NamedSharding(mesh, P("d")))
    same(lambda psum: sharded(lambda x: psum(x, "d"), mesh.abstract_mesh, out_specs=P(), check_vma=check_vma), x)


def test_inside_a_program_with_automatic_sharding():
    mesh = mesh_of(8)
    x = jax.device_put(X, jax.NamedSharding(mesh, P("d")))

    def make(psum):
        return lambda x: jax.vmap(lambda row: psum(row, "batch"), axis_name="batch")(x * 2)

    same(make, x)
    assert "replica_count=8\\0A" in jax.jit(make(jax_passing.psum)).lower(x).as_text()


def test_pmap():
    for psum in PSUMS:
        result = jax.pmap(lambda x, psum=psum: psum(x, "i"), axis_name="i")(X)
        np.testing.assert_array_equal(result, np.tile(X.sum(0), (8, 1)))
        result = jax.pmap(jax.grad(lambda x, psum=psum: (psum(x, "i") ** 2).sum()), axis_name="i")(X)
        np.testing.assert_array_equal(result, np.tile(16 * X.sum(0), (8, 1)))
    part = jax.pmap(lambda x: jax_passing.psum(x, "i"), axis_name="i", devices=jax.devices()[2:5])(X[:3])
    np.testing.assert_array_equal(part[0], X[:3].sum(0))


def test_two_meshes_in_turn():
    f = sharded(lambda x: jax_passing.psum(x, "d"), mesh_of(8), out_specs=P(), check_vma=False)
    backwards = jax.sharding.Mesh(np.array(jax.devices()[::-1]), ("d",))
    g = sharded(lambda x: jax_passing.psum(x, "d"), backwards, out_specs=P(), check_vma=False)
    for _ in range(3):
        np.testing.assert_array_equal(jax.jit(f)(X), X.sum(0, keepdims=True))
        np.testing.assert_array_equal(jax.jit(g)(X), X.sum(0, keepdims=True))


def test_one_device():
    mesh = mesh_of(1)
    np.testing.assert_array_equal(jax.jit(sharded(lambda x: jax_passing.psum(x, "d"), mesh))(X), X)

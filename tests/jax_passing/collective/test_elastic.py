"""Programs of an elastic session: traced for worlds of any size, or refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_passing
from jax_passing.errors import ConfigError, UsageError
from jax_passing.host import scope

P = jax.sharding.PartitionSpec


@pytest.fixture(autouse=True)
def elastic(session):
    """As far as tracing goes; when programs run, there is one host."""
    with scope.within(scope.of_thread()._replace(axis_names=("d",), world_size=None)):
        yield


def mapped(f, axes=("d",), check_vma=True, out=None):
    shape = (4,) if len(axes) == 1 else (2, 2)
    mesh = jax.make_mesh(shape, axes, axis_types=(jax.sharding.AxisType.Auto,) * len(axes))
    return jax.jit(
        jax.shard_map(f, mesh=mesh, in_specs=P(axes), out_specs=P() if out is None else out, check_vma=check_vma)
    )


X = np.arange(1.0, 5.0, dtype=np.float32)


def test_sums_means_and_sizes_are_those_of_the_world_in_which_they_run(check_vma):
    def collectives(x):
        return jax_passing.psum(x, "d"), jax_passing.pmean(x, "d"), jax_passing.psum(1, "d"), jax_passing.pmax(x, "d")

    f = mapped(collectives, check_vma=check_vma)
    total, mean, count, largest = f(X)
    assert (total, mean, count, largest) == (10, 2.5, 4, 4)
    assert total.dtype == mean.dtype == np.float32
    text = f.lower(X).as_text()
    assert "world_size=0\\0A" in text
    assert "passing_world_size" in text


def test_dtypes_of_means_are_those_of_other_sessions():
    for dtype in (np.int32, np.float16, jnp.bfloat16, np.complex64):
        f = lambda x: jax_passing.pmean(x, "d")  # noqa: E731
        elastic = mapped(f)(X.astype(dtype)).dtype
        with scope.within(scope.of_thread()._replace(world_size=3)):
            assert jax.eval_shape(mapped(f), X.astype(dtype)).dtype == elastic


def test_indices_count_hosts_wherever_they_are_in_order():
    with scope.within(scope.of_thread()._replace(axis_names=("m",))):
        f = mapped(lambda x: jax_passing.axis_index(("d", "m"))[None], ("d", "m"), out=P(("d", "m")))
        assert f(X).tolist() == [0, 1, 2, 3]


def test_gradients_are_summed():
    def loss(parameter, x):
        return (parameter * x).sum()

    f = mapped(lambda x: jax_passing.overlap(loss, "d")(jnp.float32(2.0), x))
    assert [float(each) for each in f(X)] == [5.0, 2.5]


def test_broadcast_from_the_first_device():
    f = mapped(lambda x: jax_passing.broadcast(x, "d"))
    assert f(X).tolist() == [1.0]
    with pytest.raises(ConfigError, match="only device 0 is sure to be there"):
        mapped(lambda x: jax_passing.broadcast(x, "d", root=1))(X)
    assert jax.vmap(lambda x: jax_passing.broadcast(x, "d"), axis_name="d")(X).tolist() == [1.0] * 4


@pytest.mark.parametrize("function", [jax_passing.all_gather, jax_passing.psum_scatter])
def test_what_has_the_shape_of_the_world_is_refused(function):
    with pytest.raises(ConfigError, match=r"that is known only when a program runs"):
        mapped(lambda x: function(jnp.ones(4) * x, "d"), out=P("d"))(X)


def test_what_is_refused_to_several_hosts_is_refused_here():
    with pytest.raises(ConfigError, match="strategy='native'"):
        mapped(lambda x: jax_passing.psum(x, "d", strategy="native"))(X)
    with pytest.raises(ConfigError, match="strategy='flat'"):
        mapped(lambda x: jax_passing.psum(x, "d", strategy="flat"))(X)
    with pytest.raises(UsageError, match="differentiated from outside of the vmap"):
        jax.grad(lambda x: jax.vmap(lambda x: jax_passing.psum(x, "d"), axis_name="d")(x).sum())(X)

"""Programs compare what they take for equal where they first run: here between the devices of one host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_passing
from jax_passing.errors import ProgramMismatchError, translate
from jax_passing.host import scope
from support.jax.lowered_sums import calls

P = jax.sharding.PartitionSpec


@pytest.fixture(autouse=True)
def several_hosts(session):
    """There may be, as far as tracing tells; when programs run, there is one."""
    with scope.within(scope.of_thread()._replace(axis_names=("d",), world_size=None)):
        yield session


def mapped(f, specs=None, check_vma=False):
    mesh = jax.sharding.Mesh(jax.devices(), ("d",))
    return jax.jit(
        jax.shard_map(f, mesh=mesh, in_specs=P("d") if specs is None else specs, out_specs=P("d"), check_vma=check_vma)
    )


def cast(tree):
    return jax.tree.map(lambda leaf: leaf[None], jax_passing.pvary(tree, "d"))


def comparisons(f, *arguments):
    return calls(jax.jit(f).lower(*arguments).as_text(), "passing_equal")


ONES = {"a": np.ones((8, 3), np.float32), "b": np.ones(8, np.int8)}
OTHER = {"a": ONES["a"], "b": np.array([1, 1, 1, 1, 1, 2, 1, 1], np.int8)}


def test_the_first_call_of_a_session_compares(session):
    f = mapped(cast, check_vma=False)
    jax.block_until_ready(f(ONES))
    assert session.stats()["sums_completed"] == 1
    jax.block_until_ready(f(OTHER))  # later calls don't
    assert session.stats()["sums_completed"] == 1


def test_the_error_names_leaf_and_line(session):
    with pytest.raises(ProgramMismatchError) as raised, translate():
        jax.block_until_ready(mapped(cast)(OTHER))
    assert str(raised.value).startswith("test_equal.py:31:")
    assert " on all: ['b'] int8[1]. Here the devices of rank 0 have different ones among" in str(raised.value)


def test_every_program_compares(session):
    mapped(cast)(ONES)
    with pytest.raises(ProgramMismatchError), translate():
        jax.block_until_ready(mapped(lambda tree: cast(tree))(OTHER))


@pytest.mark.parametrize("check_equal", [True, False])
def test_the_setting(check_equal):
    with scope.within(scope.of_thread()._replace(check_equal=check_equal)):
        assert len(comparisons(mapped(cast), ONES)) == check_equal


def test_a_host_that_is_alone_compares_nothing():
    with scope.within(scope.of_thread()._replace(world_size=1)):
        assert comparisons(mapped(cast), ONES) == []


def test_a_comparison_has_room_for_every_rank():
    for world_size, ranks in ((None, 1024), (3, 3)):
        with scope.within(scope.of_thread()._replace(world_size=world_size)):
            ((_, operands, spec, _),) = comparisons(mapped(cast), ONES)
            assert (spec["dtype"], spec["op"], spec["leaf_elements"]) == ("int32", "max", str(4 * (2 + ranks)))
            assert len(operands) == 2 + 2


def test_what_has_no_bits_of_its_own_is_left_out():
    tree = {"empty": np.zeros((8, 0)), "key": jax.random.split(jax.random.key(0), 8), "half": jnp.ones(8, jnp.int4)}
    assert comparisons(mapped(cast), tree) == []
    ((_, operands, _, _),) = comparisons(mapped(cast), tree | {"w": np.ones(8)})
    assert len(operands) == 2 + 1


def loss(params, x):
    return jnp.sum(params["a"] ** 2 * x)


def gradient(params, x):
    return jax.grad(lambda params: loss(jax_passing.pvary(params, "d"), x))(params)["a"]


SPECS = (P(), P("d"))
PARAMS = {"a": np.ones((1, 3), np.float32)}
X = np.ones((8, 3), np.float32)


def test_a_derivative_compares_its_parameters_alone(check_vma):
    f = mapped(lambda params, x: gradient(params, x), SPECS, check_vma)
    assert len(comparisons(f, PARAMS, X)) == 1
    np.testing.assert_array_equal(f(PARAMS, X), np.full((8, 3), 16))


def test_a_cast_of_tangents_is_transposed():
    @jax.custom_jvp
    def square(x):
        return x**2

    square.defjvp(lambda primals, tangents: (primals[0] ** 2, jax_passing.pvary(tangents[0], "d") * 2 * primals[0]))
    f = mapped(lambda x: jax.grad(lambda x: jnp.sum(square(x)))(x))
    np.testing.assert_array_equal(f(np.ones(8, np.float32)), np.full(8, 16))


def test_what_is_left_of_a_loss_under_checkpoint_compares():
    """JAX drops the loss, which nobody needs, and keeps what it computes once more."""
    inner = jax.checkpoint(lambda params, x: jnp.sin(loss(jax_passing.pvary(params, "d"), x)))
    f = mapped(lambda params, x: jax.grad(inner)(params, x)["a"], SPECS)
    assert len(comparisons(f, PARAMS, X)) == 1


def test_without_jit(session):
    with pytest.raises(ProgramMismatchError), translate():
        jax.block_until_ready(
            jax.shard_map(
                cast, mesh=jax.sharding.Mesh(jax.devices(), ("d",)), in_specs=P("d"), out_specs=P("d"), check_vma=False
            )(OTHER)
        )

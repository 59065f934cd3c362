"""`process_sum`, `barrier` and `on_rank_zero` on one host."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_passing
from jax_passing.errors import (
    RankZeroError,
    UsageError,
)

pytestmark = pytest.mark.usefixtures("session")


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int64", "uint64", "float32", "float64", "bfloat16", "complex128"]
)
def test_process_sum_of_one_host(dtype):
    x = np.random.default_rng(0).integers(0, 2**6, (3, 5)).astype(jnp.dtype(dtype))
    result = jax_passing.process_sum({"a": x, "b": [x[0, 0], x[:0]]})
    expected = x.astype(np.int32) if dtype == "bool" else x
    assert isinstance(result["a"], np.ndarray)
    assert result["a"].dtype == result["b"][1].dtype == expected.dtype
    np.testing.assert_array_equal(result["a"], expected)
    assert result["b"][0] == expected[0, 0]
    assert result["b"][1].shape == (0, 5)


def test_process_sum_of_numbers_and_jax_arrays():
    assert jax_passing.process_sum(2**53 + 1) == 2**53 + 1
    assert jax_passing.process_sum((0.1, True, 1 + 2j)) == (0.1, 1, 1 + 2j)
    assert type(jax_passing.process_sum(1.5)) is np.float64
    np.testing.assert_array_equal(jax_passing.process_sum(jnp.arange(3)), np.arange(3))
    assert jax_passing.process_sum({}) == {}
    with pytest.raises(UsageError, match="process_sum of int of dtype object: cast it first. Supported"):
        jax_passing.process_sum(2**70)
    with pytest.raises(UsageError, match=r"process_sum of str of dtype str\d* at \['loss'\]: cast it first. Supported"):
        jax_passing.process_sum({"loss": "text"})


def test_process_sum_does_not_depend_on_the_mesh_that_is_set():
    explicit = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(explicit), jax.numpy_dtype_promotion("strict"):
        assert jax_passing.process_sum(np.float32(2)) == 2
        jax_passing.barrier()


def test_process_sum_and_barrier_in_traced_code():
    for transform in (jax.jit, jax.vmap, jax.grad):
        with pytest.raises(UsageError, match=r"process_sum is for values that are known.*use jax_passing\.psum"):
            transform(lambda x: x.sum() * jax_passing.process_sum(x))(jnp.ones(3) if transform is not jax.grad else 1.0)
    for f in (jax_passing.barrier, lambda: jax_passing.process_sum(1), lambda: jax_passing.on_rank_zero(int)):
        with pytest.raises(UsageError, match="here JAX traces"):
            jax.jit(f)()


def test_what_fails_on_rank_zero_is_told_whatever_its_text(session):
    def fail():
        raise FileNotFoundError(2, "None", "\udcff" + "x" * 2000)

    with pytest.raises(RankZeroError, match="failed there: FileNotFoundError: .Errno 2. None: '.*xxx$") as caught:
        jax_passing.on_rank_zero(fail)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert jax_passing.on_rank_zero(lambda: 7) is None


def test_process_sum_and_barrier_without_a_session_or_on_another_thread(session):
    raised = []

    def run():
        for f in (lambda: jax_passing.process_sum(1), jax_passing.barrier):
            try:
                f()
            except UsageError as error:
                raised.append(error)
        with jax_passing.stream("beside"):
            jax_passing.barrier()
            assert jax_passing.process_sum(3) == 3
            raised.append(None)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert len(raised) == 3
    jax_passing.barrier()
    session.shutdown()
    for f in (lambda: jax_passing.process_sum(1), jax_passing.barrier):
        with pytest.raises(UsageError, match=r"call jax_passing\.init"):
            f()


def test_process_sum_compiles_once_for_each_place():
    from jax_passing.collective.process_sum import _program

    before = _program.cache_info().misses
    for value in range(5):
        assert jax_passing.process_sum(value) == value
    assert _program.cache_info().misses == before + 1

"""Means as factors of low rank. Here is one host; tests/end_to_end has several."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jax_passing.errors import ConfigError
from jax_passing.optax import powersgd, restart
from jax_passing.optax.low_rank import matrix_shape, orthonormal
from support.jax.optimizing import PARAMS, difference, exact_mean, gradients, largest, steps_of

pytestmark = pytest.mark.usefixtures("session")

DEVICES = 4
ROUNDING = 2.0**-18  # of numbers near 1 that went through products of some ten terms, a QR and two sums in float32


def of_rank(rank, step, shape=(40, 48)):
    """Returns a row for each device: matrices that differ, whose mean has this rank and singular values near 1."""
    random = np.random.default_rng(0)
    left, right = (np.linalg.qr(random.normal(size=(size, rank)))[0] for size in shape)  # the same at each step
    random = np.random.default_rng((1, step))
    noise = random.normal(size=(DEVICES, *shape))
    noise -= noise.mean(0)
    return ((left * random.uniform(1, 2, rank)) @ right.T + noise).astype(np.float32)


def test_a_mean_of_low_rank_is_exact(check_vma):
    """Also one of a rank below the factors', which then have directions to spare, and none."""
    transformation = powersgd("d", rank=4)
    params = jnp.zeros((40, 48))
    step = steps_of(transformation, DEVICES, check_vma)
    for rank in (0, 2, 4):
        state = transformation.init(params)
        for number in range(3):
            rows = of_rank(rank, number)
            mean, state = step(rows, state, params)
            # The first Q is drawn: it has a part in each direction, but some of these may be small.
            assert difference(mean, rows.astype(np.float64).mean(0)) < (ROUNDING if number else 2**-10)
        assert largest(state.residuals) < ROUNDING


@pytest.mark.parametrize(("start_step", "check_vma"), [(0, False), (2, True)])
def test_errors_of_all_steps_together_are_the_last_residual(start_step, check_vma):
    transformation = powersgd("d", rank=2, start_step=start_step)
    step, state = steps_of(transformation, DEVICES, check_vma), transformation.init(PARAMS)
    assert {name: None if q is None else q.shape for name, q in state.factors.items()} == {
        "b": None,
        "w": (2, 48),
        "z": None,
    }
    missing = jax.tree.map(lambda p: np.zeros(p.shape), PARAMS)
    for number in range(6):
        means, state = step(gradients(number, range(DEVICES)), state, PARAMS)
        exact = exact_mean(number, DEVICES)
        whole = PARAMS if number < start_step else {"b": 0, "z": 0}
        assert difference([means[name] for name in whole], [exact[name] for name in whole]) < ROUNDING
        missing = jax.tree.map(lambda total, e, m: total + e - m, missing, exact, means)
    assert int(state.step) == 6
    assert difference(missing, state.residuals.leaves) < 6 * 2**-20
    assert largest(state.residuals.leaves["w"]) > 0.1
    again = restart(state)
    assert largest(again.residuals) == 0
    np.testing.assert_array_equal(again.factors["w"], state.factors["w"])


def test_gradients_that_are_not_finite_leave_the_state_of_their_leaf():
    transformation = powersgd("d", rank=2)
    step, state = steps_of(transformation, DEVICES), transformation.init(PARAMS)
    _, state = step(gradients(0, range(DEVICES)), state, PARAMS)
    for bad in (np.nan, np.inf):
        rows = gradients(1, range(DEVICES))
        rows["w"][2, 3, 1, 5] = bad
        means, after = step(rows, state, PARAMS)
        assert not np.isfinite(means["w"]).any()
        assert np.isfinite(means["b"]).all()
        np.testing.assert_array_equal(after.residuals.leaves["w"], state.residuals.leaves["w"])
        np.testing.assert_array_equal(after.factors["w"], state.factors["w"])
    assert np.isfinite(step(rows | gradients(1, range(DEVICES)), after, PARAMS)[0]["w"]).all()


def outer(rows, columns, value=1.0, shape=(40, 48)):
    """Returns the same matrix of rank 1 for each device, with `value` at these rows and columns."""
    matrix = np.zeros(shape, np.float32)
    matrix[np.ix_(rows, columns)] = value
    return np.stack([matrix] * DEVICES)


def rest_after(matrices, rank=4):
    """Takes a step for each of these. Returns by how much the last result missed, and the largest last residual."""
    transformation = powersgd("d", rank=rank)
    step, state = steps_of(transformation, DEVICES), transformation.init(jnp.zeros((40, 48)))
    for rows in matrices:
        before = np.asarray(state.residuals.leaves)
        mean, state = step(rows, state, jnp.zeros((40, 48)))
    return difference(mean, before + rows.mean(0)), largest(state.residuals)


# As the gradients of an embedding whose first words never come, and of a layer behind units that are off.
FAR = [*range(20, 30)]


@pytest.mark.parametrize("tiny", [0.0, 1e-30, 1e-42])
def test_a_gradient_of_zero_forgets_no_factor(tiny):
    """The bases that a QR makes of zeros are the first columns, and then the first rows."""
    missed, residual = rest_after([outer([0], [0], tiny), outer(FAR, FAR)])
    assert missed < ROUNDING
    assert residual < ROUNDING


@pytest.mark.parametrize("rank", [2, 4])
def test_gradients_of_lower_rank_leave_the_factors_their_other_directions(rank):
    """Were only the directions of the last gradient kept, others would never be found: they are orthogonal to it."""
    others = sum(outer([20 + i, 30 + i], [24 + i, 36 + i]) for i in range(rank - 1))
    missed, residual = rest_after([outer([5], [5])] * 5 + [others], rank)
    assert missed < ROUNDING
    assert residual < ROUNDING


def test_factors_stay_independent():
    """Also where the first of them sees nothing of a gradient that the second one sees."""
    transformation = powersgd("d", rank=2)
    step, state = steps_of(transformation, DEVICES), transformation.init(jnp.zeros((40, 48)))
    state = state._replace(factors=jnp.eye(2, 48, 20))
    rows = np.zeros((DEVICES, 40, 48), np.float32)
    rows[:, 0:3, 21] = 1
    for _ in range(4):
        _, state = step(rows, state, jnp.zeros((40, 48)))
        basis = np.asarray(orthonormal(state.factors))
        np.testing.assert_allclose(np.linalg.norm(basis[:, 20:22], axis=1), 1, atol=2**-10)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((768, 3072), (768, 3072)),
        ((3, 3, 64, 128), (576, 128)),
        ((768, 12, 64), (768, 768)),
        ((12, 64, 768), (768, 768)),
        ((1000,), None),
        ((), None),
        ((16, 16), None),  # (16 + 16) * 4 * 2 elements in factors of 256
        ((17, 17), (17, 17)),
        ((0, 100), None),
    ],
)
def test_leaves_become_matrices_where_that_pays(shape, expected):
    assert matrix_shape(jax.ShapeDtypeStruct(shape, jnp.bfloat16), 4, 2.0) == expected
    assert matrix_shape(jax.ShapeDtypeStruct(shape, jnp.complex64), 4, 2.0) is None


def test_rows_become_orthonormal_whatever_they_are():
    random = np.random.default_rng(0).normal(size=(4, 30)).astype(np.float32)
    for rows in (random, random * 1e-20, np.zeros((4, 30), np.float32), np.stack([random[0]] * 4)):
        basis = orthonormal(rows)
        np.testing.assert_allclose(basis @ basis.T, np.eye(4), atol=1e-6)
        np.testing.assert_allclose((rows @ basis.T) @ basis, rows, atol=1e-6 * np.abs(rows).max())


@pytest.mark.parametrize(
    "arguments", [{"rank": 0}, {"rank": 1.5}, {"start_step": -1}, {"min_compression_rate": 0}, {"wire_dtype": "half"}]
)
def test_bad_arguments_are_refused(arguments):
    (name,) = arguments
    with pytest.raises(ConfigError, match=rf"powersgd\b.*{name}"):
        powersgd("d", **arguments)


def test_the_state_of_another_rank_or_model_is_refused():
    transformation, rows = powersgd("d", rank=2), gradients(0, range(DEVICES))
    for state, told in (
        (powersgd("d", rank=3).init(PARAMS), "of another rank or min_compression_rate.*optimizer.init"),
        (transformation.init({**PARAMS, "w": jnp.zeros((40, 48))}), r"a residual of shape \(40, 48\) for the leaf"),
        (transformation.init({"w": PARAMS["w"]}), "have another structure"),
    ):
        with pytest.raises(ConfigError, match=f"powersgd: .*{told}"):
            steps_of(transformation, DEVICES)(rows, state, PARAMS)


def test_half_precision_and_a_chain():
    params = {"w": jnp.zeros((40, 48), jnp.bfloat16)}
    optimizer = optax.chain(powersgd("d", rank=4), optax.sgd(1.0))
    state = optimizer.init(params)
    rows = {"w": of_rank(3, 0).astype(jnp.bfloat16)}
    updates, state = steps_of(optimizer, DEVICES)(rows, state, params)
    assert updates["w"].dtype == state[0].residuals.leaves["w"].dtype == jnp.bfloat16
    mean = rows["w"].astype(np.float64).mean(0)  # whose rank is higher, as its elements were rounded
    assert difference(jnp.add(-updates["w"].astype(jnp.float32), state[0].residuals.leaves["w"]), mean) < 2**-7

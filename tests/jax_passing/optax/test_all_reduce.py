"""The mean of gradients as a transformation of optax. Here is one host; tests/end_to_end has several."""

import jax
import numpy as np
import optax
import pytest

from jax_passing.errors import ConfigError, UnvaryingInputError
from jax_passing.optax import all_reduce
from support.jax.optimizing import PARAMS, difference, exact_mean, gradients, steps_of

pytestmark = pytest.mark.usefixtures("session")

DEVICES = 4
ROUNDING = 2.0**-21  # of a mean and a sum of numbers below 8


def test_the_mean_and_the_sum(check_vma):
    for mean, factor in ((True, 1), (False, DEVICES)):
        transformation = all_reduce("d", mean=mean)
        state = transformation.init(PARAMS)
        assert jax.tree.leaves(state) == []
        results, _ = steps_of(transformation, DEVICES, check_vma)(gradients(0, range(DEVICES)), state, PARAMS)
        expected = jax.tree.map(lambda one, f=factor: one * f, exact_mean(0, DEVICES))
        assert difference(results, expected) < DEVICES * ROUNDING


def test_in_a_chain_what_follows_sees_the_mean():
    optimizer = optax.chain(all_reduce("d"), optax.clip_by_global_norm(0.5), optax.scale(-1.0))
    results, _ = steps_of(optimizer, DEVICES)(gradients(0, range(DEVICES)), optimizer.init(PARAMS), PARAMS)
    mean = jax.tree.map(np.float32, exact_mean(0, DEVICES))
    expected, _ = optax.clip_by_global_norm(0.5).update(mean, optax.EmptyState())
    assert difference(results, jax.tree.map(np.negative, expected)) < 2.0**-18


def test_what_it_refuses():
    with pytest.raises(ConfigError, match="all_reduce"):
        all_reduce("d", wire_dtype="int5")
    transformation = all_reduce("d")
    mesh = jax.make_mesh((DEVICES,), ("d",))
    with pytest.raises(UnvaryingInputError):
        jax.shard_map(
            lambda grads: transformation.update(grads, transformation.init(PARAMS), PARAMS)[0],
            mesh=mesh, in_specs=jax.P(), out_specs=jax.P(),
        )(PARAMS)  # fmt: skip
    around = optax.MultiSteps(transformation, 2)
    with pytest.raises(ConfigError, match=r"optax.chain\(all_reduce"):
        steps_of(around, DEVICES)(gradients(0, range(DEVICES)), around.init(PARAMS), PARAMS)

"""Pipelines of the models of examples/models; tests/every_pipeline.py tries every schedule and number of stages."""

import jax
import numpy as np
import optax
import pytest
from pipeline_cases import Case, error

STEPS = 10


@pytest.fixture
def _compiled_fast():
    """What runs so rarely takes longer to optimise than to run."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def train(value_and_grad, params, batches):
    """The losses of all steps."""
    optimizer = optax.sgd(5e-3, momentum=0.9)

    @jax.jit
    def update(params, state, gradients, aux):
        with jax.numpy_dtype_promotion("standard"):  # Adam raises a float to the power of an integer
            updates, state = optimizer.update(gradients, state)
        params = optax.apply_updates(params, updates)
        return {**params, "batch_stats": aux["batch_stats"]} if "batch_stats" in aux else params, state

    state, losses = optimizer.init(params), []
    for batch in batches:
        (loss, aux), gradients = value_and_grad(params, batch)
        gradients, aux = jax.device_get((gradients, aux))  # from all devices
        params, state = update(params, state, gradients, aux)
        losses.append(float(loss))
    return np.array(losses)


@pytest.mark.slow
@pytest.mark.usefixtures("_compiled_fast")
@pytest.mark.parametrize(
    ("name", "stages", "schedule", "has_key"),
    [
        ("gpt2", 3, "zb-h1", False),
        ("gpt2-scan", 4, "interleaved", True),
        ("alexnet", 6, "gpipe", True),
        ("vgg16", 2, "1f1b", False),
        ("resnet50", 3, "zb-h1", False),  # its microbatches have batch statistics of their own
    ],
)
def test_pipelines_train_models_as_they_are(name, stages, schedule, has_key):
    """Stages add up in another order, so results differ by rounding: losses by up to 8e-7 when this was written."""
    case = Case(name, stages, has_key)
    run = case.pipeline(schedule)
    result, gradients = run(case.params, case.batch)
    whole, whole_gradients = case.unpartitioned(case.params, case.batch)
    assert error(gradients, whole_gradients) <= 1e-5
    assert error(gradients, case.through_gpipe[1]) <= 1e-6
    assert error(result, whole) <= 1e-5
    ours, theirs = (train(step, case.params, case.batches(STEPS)) for step in (run, case.unpartitioned))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert theirs[-1] < theirs[0]

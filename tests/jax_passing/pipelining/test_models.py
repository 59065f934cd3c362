"""Pipelines of the models of examples/models; tests/manual/every_pipeline.py tries every schedule and number of stages.

GPT-2 is in tests/end_to_end/sums/test_pipelines.py, and with a scan in tests/jax_passing/partitioning.
"""

import jax
import optax
import pytest

from support.jax.pipeline_cases import ROUNDING, Case, error

STEPS = 3


def train(value_and_grad, params, batches):
    """Yields for each step the parameters it began with, its batch, its loss and aux, and its gradients."""
    optimizer = optax.sgd(5e-3, momentum=0.9)

    @jax.jit
    def update(params, state, gradients, aux):
        with jax.numpy_dtype_promotion("standard"):  # Adam raises a float to the power of an integer
            updates, state = optimizer.update(gradients, state)
        params = optax.apply_updates(params, updates)
        return {**params, "batch_stats": aux["batch_stats"]} if "batch_stats" in aux else params, state

    state = optimizer.init(params)
    for batch in batches:
        result, gradients = jax.device_get(value_and_grad(params, batch))  # from all devices
        yield params, batch, result, gradients
        params, state = update(params, state, gradients, result[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stages", "schedule", "has_key"),
    [
        ("alexnet", 6, "interleaved", True),
        ("vgg16", 2, "1f1b", False),
        ("resnet50", 3, "zb-h1", False),  # its microbatches have batch statistics of their own
    ],
)
def test_pipelines_train_models_as_they_are(name, stages, schedule, has_key):
    """Stages add up in another order, so results differ by rounding: by 2e-7 to 1.2e-6, depending on the machine.

    Each step of a training is compared by itself. Over several, rounding grows: the losses of two trainings of resnet50
    were 1e-7 apart after three steps, and 4e-2 after seven.
    """
    case = Case(name, stages, has_key)
    run = case.pipeline(schedule)
    assert error(run(case.params, case.batch)[1], case.through_gpipe[1]) <= ROUNDING
    for params, batch, result, gradients in train(run, case.params, case.batches(STEPS)):
        whole, whole_gradients = case.unpartitioned(params, batch)
        assert error(gradients, whole_gradients) <= 1e-5
        assert error(result, whole) <= 1e-5

"""The models of examples/models: they have as many parameters as those of the papers, and they learn."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jax_passing import partition
from support.jax import model_cases


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt2-small", 124_439_808),  # as many as in OpenAI's checkpoints
        ("gpt2-medium", 354_823_168),
        pytest.param("gpt2-large", 774_030_080, marks=pytest.mark.slow),
        pytest.param("gpt2-xl", 1_557_611_200, marks=pytest.mark.slow),
        ("alexnet", 61_100_840),  # as many as in torchvision's models
        ("vgg16", 138_357_544),
        ("resnet50", 25_557_032),
    ],
)
def test_parameters_are_as_many_as_published(name, count):
    variables, _ = model_cases.shapes_of(model_cases.FULL[name], 1)
    leaves = jax.tree.leaves(variables.get("params", variables))
    assert sum(math.prod(leaf.shape) for leaf in leaves) == count


@pytest.mark.parametrize(
    ("name", "stages", "slowest"),
    [
        pytest.param("gpt2-xl", 6, 1.02, marks=pytest.mark.slow),
        ("gpt2-small", 4, 1.055),  # the product with the vocabulary is one operation of 26.3 % of the work
        pytest.param("resnet50", 4, 1.03, marks=pytest.mark.slow),
        ("alexnet", 4, 1.48),  # one of its convolutions is 32 % of the work
    ],
)
def test_stages_are_as_equal_as_operations_allow(name, stages, slowest):
    """Compares the slowest stage's time over the mean, from shapes only."""
    model = model_cases.FULL[name]
    shapes = model_cases.shapes_of(model, 2, name != "resnet50")
    plan = partition(model_cases.loss_of(model), *shapes, stages=stages, imbalance=0, has_aux=True)
    assert plan.bottleneck < slowest


def train(model, rate, steps, size=32, has_key=False):
    """Returns the trained variables, and the losses of all steps."""
    loss, optimizer = model_cases.loss_of(model), optax.adam(rate)

    @jax.jit
    def step(variables, state, batch):
        (value, aux), gradients = jax.value_and_grad(loss, has_aux=True)(variables, batch)
        with jax.numpy_dtype_promotion("standard"):  # Adam raises a float to the power of an integer
            updates, state = optimizer.update(gradients, state)
        variables = optax.apply_updates(variables, updates)
        if "batch_stats" in aux:
            variables = {**variables, "batch_stats": aux["batch_stats"]}
        return variables, state, value

    losses, state = [], None
    for number, batch in enumerate(model_cases.batches_of(model, size, steps)):
        if state is None:
            variables = model_cases.init(model, jax.random.key(0), batch)
            state = optimizer.init(variables)
        if has_key:
            batch["key"] = jax.random.key(number)
        variables, state, value = step(variables, state, batch)
        losses.append(float(value))
    return variables, np.array(losses)


@pytest.mark.slow
def test_gpt2_learns_how_python_is_written():
    """Trains a GPT-2 with a scan over its layers and dropout; tests/end_to_end/launch/test_gpt2.py trains one
    without."""
    _, losses = train(model_cases.SMALL["gpt2-scan"], 3e-3, 100, size=16, has_key=True)
    shares = np.bincount(model_cases.text()) / len(model_cases.text())
    knows_frequencies = -np.sum(shares * np.log(shares, where=shares > 0, out=np.zeros(len(shares))))
    assert losses[0] == pytest.approx(math.log(256), rel=0.05)
    assert losses[-20:].mean() < knows_frequencies


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rate", "steps"), [("alexnet", 2e-3, 100), ("resnet50", 3e-3, 60)])
def test_image_models_learn_digits(name, rate, steps):
    model = model_cases.SMALL[name]
    variables, _ = train(model, rate, steps)
    variables = variables if "batch_stats" in variables else {"params": variables}
    (others,) = model_cases.batches_of(model, 200, 1, seed=1)
    # Guessing finds one in ten. Three trainings of each model found 77 to 97 %, depending on rounding.
    found = jnp.argmax(jax.jit(model.apply)(variables, others["images"]), axis=-1)  # not training: with batch_stats
    assert np.mean(found == others["labels"]) > 0.6


@pytest.mark.slow  # it compiles two examples, of which test_plan.py cuts smaller ones
def test_a_scan_over_layers_computes_what_the_layers_do():
    loop, scan = model_cases.SMALL["gpt2"], model_cases.SMALL["gpt2-scan"]
    (batch,) = model_cases.batches_of(loop, 4, 1)
    params = model_cases.init(loop, jax.random.key(0), batch)
    layers = [params[f"layer_{number}"] for number in range(loop.config.layers)]
    stacked = {name: leaf for name, leaf in params.items() if not name.startswith("layer_")}
    stacked["layers"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    assert jax.tree.structure(stacked) == jax.tree.structure(model_cases.init(scan, jax.random.key(0), batch))
    one, _ = jax.jit(model_cases.loss_of(loop))(params, batch)
    other, _ = jax.jit(model_cases.loss_of(scan))(stacked, batch)
    np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.slow  # of examples: tests of pipelines drop with keys of their own in each run
@pytest.mark.parametrize("name", ["alexnet", "gpt2", "vgg16"])
def test_activations_are_dropped_by_the_batchs_key(name):
    model = model_cases.SMALL[name]
    (batch,) = model_cases.batches_of(model, 4, 1)
    params = model_cases.init(model, jax.random.key(0), batch)
    loss = jax.jit(model_cases.loss_of(model))
    values = [float(loss(params, {**batch, "key": jax.random.key(seed)})[0]) for seed in (1, 1, 2)]
    assert values[0] == values[1] != values[2]
    assert values[0] != float(loss(params, batch)[0])

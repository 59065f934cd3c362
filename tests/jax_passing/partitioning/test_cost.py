"""Floating-point operations counted from shapes, against counts by hand (single equations) and XLA's (models)."""

import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jax_passing.partitioning.cost import Cost, cost_of_jaxpr
from jax_passing.partitioning.operation_cost import OperationCost, costs_of_chain
from jax_passing.partitioning.scans import unroll
from jax_passing.partitioning.stages import Slicer
from jax_passing.partitioning.traced_model import trace
from models import gpt2
from support.jax import model_cases


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def cost_of(function, *shapes):
    return cost_of_jaxpr(jax.make_jaxpr(function)(*shapes))


def convolution(**details):
    numbers = ("NHWC", "HWIO", "NHWC")
    details = {"window_strides": (1, 1), "padding": "VALID", **details}
    return lambda image, kernel: lax.conv_general_dilated(image, kernel, dimension_numbers=numbers, **details)


def pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


IMAGE, KERNEL = f32(2, 8, 8, 3), f32(3, 3, 3, 5)


@pytest.mark.parametrize(
    ("function", "shapes", "flops"),
    [
        (jnp.matmul, [f32(4, 5, 6), f32(4, 6, 7)], 4 * 5 * 7 * 2 * 6),
        (convolution(), [IMAGE, KERNEL], 2 * 6 * 6 * 5 * 2 * 3 * 3 * 3),
        # With padding 6 rows use the kernel's 3, and 2 use two of them: 22 instead of 8 x 3. So do columns.
        (convolution(padding="SAME"), [IMAGE, KERNEL], 2 * 22 * 22 * 5 * 2 * 3),
        (convolution(padding="SAME", window_strides=(2, 2)), [IMAGE, KERNEL], 2 * 11 * 11 * 5 * 2 * 3),
        # 8 rows with 7 zeros between them: of 13 windows 7 begin with a row and so meet two of them, 6 meet one.
        (convolution(padding=((0, 0), (0, 0)), lhs_dilation=(2, 2)), [IMAGE, KERNEL], 2 * 20 * 20 * 5 * 2 * 3),
        # The kernel spans 5 rows, so 4 are left.
        (convolution(rhs_dilation=(2, 2)), [IMAGE, KERNEL], 2 * 12 * 12 * 5 * 2 * 3),
        (convolution(feature_group_count=3), [IMAGE, f32(3, 3, 1, 6)], 2 * 18 * 18 * 6 * 2),
        (pool, [IMAGE], 2 * 4 * 4 * 3 * 3),
        (lambda x: x.sum(axis=0), [f32(10, 7)], 9 * 7),
        (lambda x: lax.reduce(x, 0.0, lambda a, b: a + b, (0,)), [f32(10, 7)], 9 * 7 + 1),  # and the initial value
        (lambda x: lax.sort(x, dimension=0), [f32(8, 5)], 8 * 5 * 3),
        (lambda x: jnp.tanh(x) * x, [f32(10, 7)], 2 * 70),
        (lambda x: jnp.reshape(x, (70,))[None, 3:].T, [f32(10, 7)], 0),
        (lambda x: lax.scan(lambda c, _: (c * x, None), x, length=9)[0], [f32(5)], 9 * 5),
        (lambda x: lax.cond(True, lambda y: y * 2 + 1, jnp.sin, x), [f32(5)], 2 * 5),
        (jax.checkpoint(lambda x: x * x), [f32(5)], 5),
        (lambda: jax.random.bits(jax.random.key(0), (9,)), [], 9 * 117),
    ],
)
def test_equations_cost_what_is_derived_by_hand(function, shapes, flops):
    assert cost_of(function, *shapes).flops == flops


def test_gradients_of_convolutions_cost_what_the_convolutions_do():
    """Both multiply the same pairs, whatever dilation and padding JAX's gradients have."""
    for details in ({}, {"padding": "SAME"}, {"padding": "SAME", "window_strides": (2, 2)}, {"rhs_dilation": (2, 2)}):
        forward = convolution(**details)
        flops = cost_of(forward, IMAGE, KERNEL).flops
        out = jax.eval_shape(forward, IMAGE, KERNEL)

        def with_both_gradients(image, kernel, ones, forward=forward):
            return jax.vjp(forward, image, kernel)[1](ones)

        assert cost_of(with_both_gradients, IMAGE, KERNEL, out).flops == 3 * flops


def test_the_gradient_of_pooling_searches_each_window_once():
    assert cost_of(lambda x: jax.vjp(pool, x)[1](jnp.ones((2, 4, 4, 3))), IMAGE).flops == 2 * 4 * 4 * 3 * (3 + 4)


def test_bytes_are_those_read_and_written():
    assert cost_of(jnp.matmul, f32(5, 6), f32(6, 7)).bytes == 4 * (5 * 6 + 6 * 7 + 5 * 7)


def test_time_is_that_of_computing_or_of_moving():
    assert Cost(flops=8.0, bytes=6.0).time_s(4.0, 3.0) == 2.0
    assert Cost(flops=8.0, bytes=6.0).time_s(4.0, 1.0) == 6.0


@pytest.mark.parametrize(
    ("name", "within"),
    [("gpt2-small", 0.05), ("alexnet", 0.1), pytest.param("resnet50", 0.05, marks=pytest.mark.slow)],
)
def test_models_cost_what_xla_counts(name, within):
    model = model_cases.FULL[name]
    loss, shapes = model_cases.loss_of(model), model_cases.shapes_of(model, 2)
    for function in (loss, jax.value_and_grad(loss, has_aux=True)):
        counted = jax.jit(function).lower(*shapes).cost_analysis()["flops"]
        assert cost_of(function, *shapes).flops == pytest.approx(counted, rel=within)


def test_a_scan_over_layers_costs_what_the_layers_do():
    """XLA counts the body of a scan once."""
    costs = []
    for scan in (False, True):
        model = gpt2.GPT2(replace(gpt2.SMALL, scan=scan))
        loss, shapes = model_cases.loss_of(model), model_cases.shapes_of(model, 2, has_key=True)
        costs.append(cost_of(jax.value_and_grad(loss, has_aux=True), *shapes).flops)
    assert costs[0] == pytest.approx(costs[1], rel=0.01)


def costs_of_operations(model, has_key=False):
    """Returns the sum of the chain's costs, and the processor time that it takes to count them, in seconds."""
    params, batch = model_cases.shapes_of(model, 2, has_key)
    (params, params_tree), (batch, batch_tree) = jax.tree.flatten(params), jax.tree.flatten(batch)
    loss = model_cases.loss_of(model)

    def flat(params, batch):
        return jax.tree.leaves(loss(jax.tree.unflatten(params_tree, params), jax.tree.unflatten(batch_tree, batch)))

    slicer = Slicer(unroll(trace(flat, params, batch)), [""] * len(params))
    began_s = time.process_time()
    costs = costs_of_chain(slicer)
    return sum(costs, start=OperationCost()), time.process_time() - began_s


@pytest.mark.parametrize(
    ("model", "has_key"),
    [
        (gpt2.GPT2(replace(gpt2.SMALL, scan=True, remat=True)), True),
        (model_cases.FULL["alexnet"], True),
        pytest.param(model_cases.FULL["resnet50"], False, marks=pytest.mark.slow),
    ],
)
def test_operations_cost_together_what_the_model_does(model, has_key):
    loss, shapes = model_cases.loss_of(model), model_cases.shapes_of(model, 2, has_key)
    whole = cost_of(jax.value_and_grad(loss, has_aux=True), *shapes)
    operations, _ = costs_of_operations(model, has_key)
    assert operations.forward.flops == pytest.approx(cost_of(loss, *shapes).flops, rel=0.01)
    assert (operations.forward + operations.backward).flops == pytest.approx(whole.flops, rel=0.05)


@pytest.mark.parametrize("options", [pytest.param({}, marks=pytest.mark.slow), {"scan": True, "remat": True}])
def test_large_models_are_costed_fast(options):
    """Layers differ in names and dropout's numbers only, so they are looked at once."""
    _, time_s = costs_of_operations(gpt2.GPT2(replace(gpt2.XL, **options)), has_key=True)
    assert time_s <= 3

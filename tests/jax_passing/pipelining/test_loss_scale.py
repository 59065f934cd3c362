"""Steps with a dynamic loss scale, against Flax's own on one device."""

import contextlib
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.dynamic_scale import DynamicScale

from jax_passing import init, partition, pipeline
from jax_passing.errors import UsageError

ROWS, MICROBATCHES, WIDTH = 4, 4, 8


@pytest.fixture(autouse=True)
def _standard_promotion():
    """Turns on the dtype promotion that optax and Flax need."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def loss(params, batch):
    """Computes in float16, where gradients of 1e-6 are lost without a scale."""
    x = batch.astype(jnp.float16)
    for weight in params:
        x = jnp.tanh(x @ weight.astype(jnp.float16))
    return jnp.mean(x.astype(jnp.float32)) * 1e-6


@functools.cache
def arguments(layers=6):
    random = np.random.default_rng(5)
    params = [(random.normal(size=(WIDTH, WIDTH)) / 2).astype(np.float32) for _ in range(layers)]
    return params, random.normal(size=(MICROBATCHES * ROWS, WIDTH)).astype(np.float32)


def made(stages, schedule="1f1b"):
    params, batch = arguments()
    plan = partition(loss, params, batch[:ROWS], stages=stages)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:stages]).reshape(stages, 1), ("stage", "data"))
    return pipeline(plan, mesh, microbatches=MICROBATCHES, schedule=schedule), params, batch


def mean_loss(params, batch):
    return jnp.mean(jax.vmap(lambda rows: loss(params, rows))(batch.reshape(MICROBATCHES, ROWS, WIDTH)))


@pytest.mark.parametrize(("stages", "schedule"), [pytest.param(2, "1f1b", marks=pytest.mark.slow), (3, "zb-h1")])
def test_scales_and_skipped_steps_are_those_of_one_device(stages, schedule):
    """A scale that is too large overflows; one row of the third batch is infinite, which only one microbatch sees."""
    step, params, batch = made(stages, schedule)
    broken = batch.copy()
    broken[5, 0] = np.inf
    batches = [batch, batch, broken, batch, batch]
    first = DynamicScale(scale=jnp.float32(2.0**46), backoff_factor=2.0**-16, growth_interval=1)
    optimizer = optax.apply_if_finite(optax.sgd(1e4, momentum=0.9), 100)

    own, scale, state = params, first, optimizer.init(params)
    alone = jax.jit(lambda scale, params, batch: scale.value_and_grad(mean_loss)(params, batch))
    right = []
    for each in batches:
        scale, finite, value, gradients = alone(scale, own, each)
        updates, state = optimizer.update(gradients, state, own)
        own = optax.apply_updates(own, updates)
        right.append((float(scale.scale), int(scale.fin_steps), bool(finite), float(value)))

    by_stage = step.by_stage(optimizer)
    ours, scale = step.place(params), first
    state = by_stage.init(ours)
    for each, (number, steps, finite, value) in zip(batches, right, strict=True):
        before = ours
        scale, found_finite, found, gradients = step.scaled(scale, ours, each)
        updates, state = by_stage.update(gradients, state, ours)
        ours = optax.apply_updates(ours, updates)
        assert (float(scale.scale), int(scale.fin_steps), found_finite) == (number, steps, finite)
        np.testing.assert_allclose(found, value, rtol=1e-3)
        unchanged = [np.array_equal(one, other) for one, other in zip(ours, before, strict=True)]
        assert unchanged == [not finite] * len(params)  # all stages skip a step, or none
    assert [finite for _, _, finite, _ in right] == [False, True, False, True, True]
    for one, other, begin in zip(ours, own, params, strict=True):
        moved = np.abs(np.asarray(other) - begin).max()
        assert moved > 1e-4
        np.testing.assert_allclose(one, other, rtol=0, atol=0.02 * moved)  # float16 has 11 bits


def test_a_power_of_two_changes_no_bit():
    """Where nothing under- or overflows, as in float32."""
    params, batch = arguments()

    def wide(params, batch):
        for weight in params:
            batch = jnp.tanh(batch @ weight)
        return jnp.mean(batch)

    plan = partition(wide, params, batch[:ROWS], stages=2)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]).reshape(2, 1), ("stage", "data"))
    step = pipeline(plan, mesh, microbatches=MICROBATCHES)
    value, gradients = step(params, batch)
    _, finite, scaled_value, scaled_gradients = step.scaled(DynamicScale(scale=jnp.float32(2.0**20)), params, batch)
    assert finite is True
    for one, other in zip([value, *gradients], [scaled_value, *scaled_gradients], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("in_session", [False, True])
def test_a_mean_over_devices_is_finite_though_the_sum_in_float16_isnt(in_session):
    params, batch = jnp.ones(1, jnp.float16), jnp.full(2, 40000, jnp.float16)
    plan = partition(lambda params, batch: jnp.sum(params * batch), params, batch[:1], stages=1)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]).reshape(1, 2), ("stage", "data"))
    session = init(world_size=1, rank=0, axis_name="data") if in_session else contextlib.nullcontext()
    with session:
        step = pipeline(plan, mesh, microbatches=1)
        value, gradients = step(params, batch)
        _, finite, scaled_value, scaled_gradients = step.scaled(DynamicScale(scale=jnp.float32(1.0)), params, batch)
    assert finite
    assert value.dtype == scaled_value.dtype == gradients.dtype == jnp.float16
    assert [float(each.reshape(())) for each in (value, gradients, scaled_value, scaled_gradients)] == [40000.0] * 4


def test_gradients_of_float16_parameters_are_float32():
    """They are about 1e-9; the least float16 is 6e-8. Both stages use the first parameter."""

    def tied(params, batch):
        x = batch
        for weight in (*params, params[0]):
            x = jnp.tanh(x @ weight)
        return jnp.mean(x.astype(jnp.float32)) * 1e-7

    params, batch = jax.tree.map(jnp.float16, arguments(2))
    batch = batch[:ROWS]
    plan = partition(tied, params, batch, stages=2)
    assert plan.stages[0].pieces[0].name == plan.stages[1].pieces[0].name
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]).reshape(2, 1), ("stage", "data"))
    step = pipeline(plan, mesh, microbatches=1)
    scale, optimizer = DynamicScale(), optax.adam(0.1)
    _, _, _, gradients = jax.jit(scale.value_and_grad(tied))(params, batch)
    assert 1e-10 < max(float(jnp.abs(each).max()) for each in gradients) < 6e-8 / 2

    placed, by_stage = step.place(params), step.by_stage(optimizer)
    _, finite, _, ours = step.scaled(scale, placed, batch)
    assert finite
    for one, other in zip(ours, gradients, strict=True):
        assert one.dtype == other.dtype == jnp.float32
        np.testing.assert_allclose(one, other, rtol=0, atol=5e-3 * float(jnp.abs(other).max()))
    updates, _ = by_stage.update(ours, by_stage.init(placed), placed)
    whole_updates, _ = optimizer.update(jax.device_get(ours), optimizer.init(params), params)
    moved = optax.apply_updates(placed, updates)
    for one, update, other in zip(moved, updates, whole_updates, strict=True):
        assert (one.dtype, update.dtype) == (jnp.float16, jnp.float32)
        np.testing.assert_allclose(update, other, rtol=1e-5)


class Jmp(NamedTuple):
    """Has the names of jmp.DynamicLossScale."""

    loss_scale: jax.Array

    def adjust(self, grads_finite):
        return Jmp(jnp.where(grads_finite, self.loss_scale * 2, self.loss_scale / 2))


def test_loss_scales_of_jmp_and_others():
    step, params, batch = made(2)
    scale, finite, _, _ = step.scaled(Jmp(jnp.float32(2.0**20)), params, batch)
    assert (float(scale.loss_scale), finite) == (2.0**21, True)
    scale, finite, _, gradients = step.scaled(Jmp(jnp.float32(2.0**60)), params, batch)
    assert (float(scale.loss_scale), finite) == (2.0**59, False)
    assert not step.all_finite(gradients)
    with pytest.raises(UsageError, match="scale is 1024; it has to be .* DynamicScale of Flax"):
        step.scaled(1024, params, batch)

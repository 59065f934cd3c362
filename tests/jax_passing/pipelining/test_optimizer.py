"""Optimisers by stage against the same ones for all parameters on one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from jax_passing import partition, pipeline
from jax_passing.errors import PipelineError

NAMES = ("first", "second", "last")


def loss(params, batch):
    for name in NAMES:
        batch = jnp.tanh(batch @ params[name])
    return jnp.sum(batch @ params["first"])  # tied: the first and the last stage have it


@pytest.fixture(autouse=True)
def _standard_promotion():
    """Optax needs it."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@functools.cache
def step():
    shapes = {name: jax.ShapeDtypeStruct((4, 4), jnp.float32) for name in (*NAMES, "unused")}
    plan = partition(loss, shapes, jax.ShapeDtypeStruct((2, 4), jnp.float32), stages=3)
    mesh = Mesh(np.array(jax.devices()[:6]).reshape(3, 2), ("stage", "data"))
    return pipeline(plan, mesh, microbatches=2)


def trees():
    """Parameters, and gradients of several steps."""
    random = np.random.default_rng(3)
    return [
        {name: jnp.asarray(random.normal(size=(4, 4)), jnp.float32) for name in (*NAMES, "unused")} for _ in range(4)
    ]


def decays(params):
    return jax.tree_util.tree_map_with_path(lambda path, _: "last" not in jax.tree_util.keystr(path), params)


def same(ours, theirs):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adam(1e-2),
        optax.adamw(optax.linear_schedule(1e-2, 1e-3, 3), weight_decay=0.3, mask=decays),
        optax.masked(optax.sgd(0.1, momentum=0.9), {**dict.fromkeys(NAMES, False), "second": True, "unused": True}),
        optax.multi_transform(
            {"slow": optax.sgd(1e-3), "fast": optax.adam(1e-1)}, {**dict.fromkeys(NAMES, "slow"), "unused": "fast"}
        ),
        optax.MultiSteps(optax.sgd(0.1), every_k_schedule=2),
    ],
    ids=["adam", "adamw, masked by name", "masked by a tree", "groups", "every second step"],
)
def test_updates_are_those_of_one_device(optimizer):
    run, (params, *several) = step(), trees()
    placed = run.place(params)
    ours = run.by_stage(optimizer)
    state, whole_state = ours.init(placed), optimizer.init(params)
    for gradients in several:
        updates, state = ours.update(run.place(gradients), state, placed)
        expected, whole_state = optimizer.update(gradients, whole_state, params)
        same(updates, expected)
        assert jax.tree.map(lambda leaf: leaf.sharding, updates) == jax.tree.map(lambda leaf: leaf.sharding, placed)
    assert jax.tree.structure(optax.apply_updates(placed, updates)) == jax.tree.structure(params)


@pytest.mark.parametrize("max_norm", [0.5, 1e3])
def test_gradients_are_clipped_by_the_norm_of_all_stages(max_norm):
    run, (params, gradients, *_) = step(), trees()
    placed = run.place(gradients)
    squares = [np.sum(np.square(np.asarray(leaf, np.float64))) for leaf in gradients.values()]
    np.testing.assert_allclose(run.global_norm(placed), np.sqrt(sum(squares)), rtol=1e-6)
    ours = run.by_stage(optax.sgd(1.0), max_norm=max_norm)
    updates, _ = ours.update(placed, ours.init(run.place(params)))
    clip = optax.clip_by_global_norm(max_norm)
    expected, _ = clip.update(gradients, clip.init(params))
    same(jax.tree.map(jnp.negative, updates), expected)


def test_further_arguments_are_brought_to_each_stage():
    run, (params, *several) = step(), trees()
    placed = run.place(params)
    optimizer = optax.chain(optax.sgd(1.0), optax.contrib.reduce_on_plateau(patience=1, factor=0.5))
    ours = run.by_stage(optimizer)
    state, whole_state = ours.init(placed), optimizer.init(params)
    value, _ = run(placed, np.ones((8, 4), np.float32))  # lies on all devices
    for gradients in several:
        updates, state = ours.update(run.place(gradients), state, placed, value=value)
        expected, whole_state = optimizer.update(gradients, whole_state, params, value=float(value))
        same(updates, expected)
    assert float(jnp.abs(updates["second"] / gradients["second"]).max()) < 0.6  # it was reduced


def test_an_update_is_no_part_of_a_program():
    run, (params, gradients, *_) = step(), trees()
    ours = run.by_stage(optax.sgd(1.0))
    state = ours.init(run.place(params))
    with pytest.raises(PipelineError, match=r"outside of jax.jit"):
        jax.jit(ours.update)(gradients, state)

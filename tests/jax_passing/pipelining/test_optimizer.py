"""Optimisers made by `by_stage`, against the same optimisers for all parameters on one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_passing import partition, pipeline
from jax_passing.errors import UsageError
from jax_passing.pipelining.by_row import ByRow, Home

NAMES = ("first", "second", "last")


def loss(params, batch):
    for name in NAMES:
        batch = jnp.tanh(batch @ params[name])
    return jnp.sum(batch @ params["first"])  # tied: the first and the last stage have it


@pytest.fixture(autouse=True)
def _standard_promotion():
    """Turns on the dtype promotion that optax needs."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@functools.cache
def step():
    shapes = {name: jax.ShapeDtypeStruct((4, 4), jnp.float32) for name in (*NAMES, "unused")}
    plan = partition(loss, shapes, jax.ShapeDtypeStruct((2, 4), jnp.float32), stages=3)
    mesh = Mesh(np.array(jax.devices()[:6]).reshape(3, 2), ("stage", "data"))
    return pipeline(plan, mesh, microbatches=2)


def trees():
    """Returns parameters, and the gradients of several steps."""
    random = np.random.default_rng(3)
    return [
        {name: jnp.asarray(random.normal(size=(4, 4)), jnp.float32) for name in (*NAMES, "unused")} for _ in range(4)
    ]


def decays(params):
    return jax.tree_util.tree_map_with_path(lambda path, _: "last" not in jax.tree_util.keystr(path), params)


def drawn_at_first():
    """Returns an optimiser whose init draws random numbers that depend on the number of leaves."""
    return optax.GradientTransformation(
        lambda params: optax.tree.random_like(jax.random.key(1), params),
        lambda updates, state, params=None: (jax.tree.map(jnp.add, updates, state), state),
    )


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
        drawn_at_first(),
    ],
    ids=["adam", "adamw, masked by name", "masked by a tree", "groups", "every second step", "drawn at first"],
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


@pytest.mark.usefixtures("compiled_fast")
@pytest.mark.parametrize(
    "optimizer",
    [
        optax.apply_if_finite(optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1, momentum=0.9)), 1),
        optax.MultiSteps(optax.sgd(0.1), 2, should_skip_update_fn=optax.skip_not_finite),
        optax.contrib.dog(1e-2),
        optax.chain(optax.add_noise(0.1, 0.5, 0), optax.sgd(0.1)),
    ],
    ids=["only finite ones, clipped", "skip what isn't finite", "a norm in the state at first", "noise by leaf"],
)
def test_optimisers_that_look_at_all_parameters(optimizer):
    """A value that isn't finite is in one stage, and affects all stages, and their state."""
    run, (params, *several) = step(), trees()
    several[1]["second"] = several[1]["second"].at[0, 0].set(jnp.nan)
    placed = run.place(params)
    ours = run.by_stage(optimizer)
    state, whole_state = ours.init(placed), jax.jit(optimizer.init)(params)
    whole = jax.jit(optimizer.update)
    for gradients in several:
        updates, state = ours.update(run.place(gradients), state, placed)
        expected, whole_state = whole(gradients, whole_state, params)
        same(updates, expected)
    by_path = [dict(jax.tree_util.tree_leaves_with_path(own)) for own in state]
    for path, leaf in jax.tree_util.tree_leaves_with_path(whole_state):
        rows = [own[path] for own in by_path if path in own]
        assert rows
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            same(rows, [leaf] * len(rows))


def test_a_stage_makes_no_updates_of_others():
    """A stage's program has no array of the shape of another stage's parameters."""
    shapes = {"first": (4, 4), "second": (5, 4), "last": (6, 4)}
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes.values()]
    homes = [Home(name, (row,)) for row, name in enumerate(shapes)]
    rows = [NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec())] * 3

    def clipped(leaves):
        clip = optax.clip_by_global_norm(1.0)
        return clip.update(leaves, clip.init(leaves))[0]

    made = ByRow(clipped, given, homes, homes, rows)
    for number, program in enumerate(made._last):
        takes = [given[one] if isinstance(one, int) else one.shape for one in program._takes]
        text = str(jax.make_jaxpr(program._run)(takes))
        assert [f"f32[{shape.shape[0]},4]" in text for shape in given] == [row == number for row in range(3)]


def mixing(change):
    return optax.GradientTransformation(
        lambda _: optax.EmptyState(), lambda updates, state, _: (change(updates), state)
    )


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (
            mixing(lambda tree: {**tree, "first": tree["first"] + tree["last"]}),
            r"\['first'\], which is on row 0 of the mesh, and with \['last'\], which is on row 1, in one operation: "
            r"add, .*test_optimizer.py:\d+.*leave out place and by_stage",
        ),
        (
            mixing(lambda tree: {**tree, "first": tree["last"]}),
            r"makes \['first'\], which is on row 0 of the mesh, from \['last'\], which is on row 1",
        ),
        (
            mixing(lambda tree: {"first": tree["first"]}),
            r"is PyTreeDef\(\{'first': \*\}\), theirs is PyTreeDef\(\{'first': \*, 'last': .*works leaf by leaf",
        ),
        (optax.lbfgs(0.1, linesearch=None), r"on row 0 of the mesh, .* in one operation: scan"),
        (optax.flatten(optax.adam(0.1)), r"init fails for the parameters of row 2 of the mesh alone.*ValueError"),
        (
            optax.GradientTransformation(jax.tree.leaves, lambda updates, state, _: (updates, state)),
            "isn't a part of its state for all",
        ),
        (mixing(lambda tree: (jax.debug.print("step"), tree)[1]), r"debug_print .*in the optimiser has a side effect"),
    ],
)
def test_what_no_stage_can_compute_is_refused(optimizer, message):
    run, (params, gradients, *_) = step(), trees()
    ours = run.by_stage(optimizer)
    placed = run.place(params)
    with pytest.raises(UsageError, match=message):
        ours.update(run.place(gradients), ours.init(placed), placed)


def test_gradients_of_other_parameters_are_refused():
    run, (params, gradients, *_) = step(), trees()
    ours = run.by_stage(optax.sgd(0.1))
    state = ours.init(run.place(params))
    with pytest.raises(UsageError, match=r"isn't like that of the parameters: .*Give gradients") as refusal:
        ours.update({"first": gradients["first"]}, state)
    assert len(str(refusal.value)) < 500


def test_a_function_to_evaluate_is_refused():
    run, (params, gradients, *_) = step(), trees()
    ours = run.by_stage(optax.sgd(0.1))
    with pytest.raises(UsageError, match=r"Among value_fn is a function"):
        ours.update(run.place(gradients), ours.init(run.place(params)), value_fn=lambda params: 0.0)


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
    reduced = optax.chain(optax.sgd(1.0), optax.contrib.reduce_on_plateau(patience=1, factor=0.5))
    optimizer, several = optax.MultiSteps(reduced, 2), [one for one in several for _ in range(2)]
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
    with pytest.raises(UsageError, match=r"outside of jax.jit"):
        jax.jit(ours.update)(gradients, state)

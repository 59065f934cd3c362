"""Pipelines on eight devices of one process, against the loss and the gradients of the whole model."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.ode import odeint
from jax.sharding import PartitionSpec as P

from jax_passing import partition, pipeline
from jax_passing.errors import UsageError
from jax_passing.pipelining.schedules import gpipe

ROWS = 3  # of a microbatch
TABLE = np.linspace(-1, 1, 8, dtype=np.float32)[np.newaxis]  # a constant that the loss closes over


@jax.custom_vjp
def scaled_gradient(x):
    return x * 0.9


scaled_gradient.defvjp(lambda x: (x * 0.9, None), lambda _, g: (g * TABLE,))


def loss(params, batch):
    """A loss with tied and stacked parameters, dropout, integers that cross cuts, aux, and a constant that its backward
    pass uses."""
    x = params["tied"][batch["tokens"]]
    counts = jnp.zeros((), jnp.int32)
    for number, layer in enumerate(params["layers"]):
        drawn = jax.random.bernoulli(jax.random.fold_in(batch["key"], number), 0.9, x.shape)
        x = scaled_gradient(jnp.tanh(x @ layer + TABLE)) * drawn.astype(x.dtype)
        counts += jnp.sum(x > 0, dtype=jnp.int32)
    x, means = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w) + x, jnp.mean(x)), x, params["stacked"])
    value = -jnp.mean(jax.nn.log_softmax(x @ params["tied"].T)[:, 0] * batch["weights"])
    return value, {"means": means, "last": x[0], "counts": counts}


@functools.cache
def arguments(count):
    """Returns parameters, and a batch of so many microbatches."""
    random = np.random.default_rng(1)

    def normal(*shape):
        return random.normal(size=shape).astype(np.float32) / 2

    params = {"tied": normal(20, 8), "layers": [normal(8, 8) for _ in range(3)], "stacked": normal(4, 8, 8)}
    batch = {
        "tokens": random.integers(0, 20, count * ROWS),
        "weights": normal(count * ROWS),
        "key": jax.random.split(jax.random.key(0), count),
    }
    return params, batch


def microbatch(batch, number):
    rows = slice(number * ROWS, (number + 1) * ROWS)
    return {"tokens": batch["tokens"][rows], "weights": batch["weights"][rows], "key": batch["key"][number]}


def expected(params, batch, count):
    """Returns the means over microbatches, computed one after the other, and the `counts` of the last one."""
    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    results = [step(params, microbatch(batch, number)) for number in range(count)]
    (value, aux), gradients = jax.tree.map(lambda *leaves: sum(leaves) / count, *results)
    return (value, {**aux, "counts": results[-1][0][1]["counts"]}), gradients


def same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    (result, gradients), (expected_result, expected_gradients) = ours, theirs
    for one, other in zip(jax.tree.leaves(result), jax.tree.leaves(expected_result), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected_gradients))
    for one, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected_gradients), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 * largest)


def mesh_of(stages, width):
    return jax.sharding.Mesh(np.array(jax.devices()[: stages * width]).reshape(stages, width), ("stage", "data"))


def made(stages, width, microbatches, schedule, stages_per_device=1):
    """Returns a pipeline, and arguments for it."""
    params, batch = arguments(width * microbatches)
    plan = partition(loss, params, microbatch(batch, 0), stages=stages * stages_per_device, has_aux=True)
    run = pipeline(plan, mesh_of(stages, width), microbatches=microbatches, schedule=schedule)
    return run, params, batch


@pytest.mark.parametrize(
    ("stages", "width", "microbatches", "schedule", "stages_per_device"),
    [
        pytest.param(1, 1, 1, "1f1b", 1, marks=pytest.mark.slow),
        pytest.param(2, 2, 3, "gpipe", 1, marks=pytest.mark.slow),
        (3, 2, 4, "1f1b", 1),
        pytest.param(4, 1, 2, "zb-h1", 1, marks=pytest.mark.slow),
        pytest.param(2, 2, 4, "interleaved", 2, marks=pytest.mark.slow),
    ],
)
def test_gradients_are_those_of_the_whole_model(stages, width, microbatches, schedule, stages_per_device):
    run, params, batch = made(stages, width, microbatches, schedule, stages_per_device)
    same(run(params, batch), expected(params, batch, width * microbatches))


def test_stages_hold_their_own_parameters_only():
    run, params, batch = made(2, 2, 2, "1f1b")
    placed = run.place(params)
    devices = [run.mesh.devices[0].tolist(), run.mesh.devices[1].tolist()]
    homes = [sorted(leaf.devices(), key=lambda device: device.id) for leaf in jax.tree.leaves(placed)]
    assert devices[0] in homes
    assert devices[1] in homes
    assert all(home in devices for home in homes)
    value, gradients = run(placed, batch)
    assert jax.tree.map(lambda leaf: leaf.sharding, gradients) == jax.tree.map(lambda leaf: leaf.sharding, placed)
    same((value, gradients), expected(params, batch, 4))


def test_schedules_agree_to_the_bit():
    """Each schedule adds a stage's gradients up in the order of the microbatches."""
    results = []
    for schedule, devices in (("gpipe", 2), ("1f1b", 2), ("interleaved", 1)):
        run, params, batch = made(devices, 1, 4, schedule, 2 // devices)
        results.append(jax.tree.leaves(run(params, batch)))
    for leaves in zip(*results, strict=True):
        np.testing.assert_array_equal(leaves[0], leaves[1])
        np.testing.assert_array_equal(leaves[0], leaves[2])


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_fast")
def test_a_differential_equation_whose_times_are_a_constant():
    """Its derivative indexes the constant with a traced index, which a NumPy array doesn't take."""

    def loss(params, batch):
        x = jnp.tanh(batch @ params[0])
        x = odeint(lambda y, t, w: jnp.tanh(y @ w), x, jnp.array([0.0, 1.0]), params[1])[-1]
        return jnp.mean((x @ params[2]) ** 2)

    random = np.random.default_rng(0)
    params = [jnp.asarray(random.normal(size=(4, 4)), jnp.float32) for _ in range(3)]
    batch = jnp.asarray(random.normal(size=(2, 4)), jnp.float32)
    plan = partition(loss, params, batch, stages=2)
    with jax.numpy_dtype_promotion("standard"):  # odeint needs it
        expected = jax.jit(jax.value_and_grad(loss))(params, batch)
        same(jax.jit(plan.value_and_grad)(params, batch), expected)
        same(pipeline(plan, mesh_of(2, 1), microbatches=1)(params, batch), expected)


def test_many_microbatches_are_added_in_float32():
    params, batch = {"w": jnp.ones(4, jnp.bfloat16)}, jnp.ones((300, 4), jnp.bfloat16)
    plan = partition(lambda params, batch: jnp.sum(params["w"] * batch[0]), params, batch[:1], stages=1)
    value, gradients = pipeline(plan, mesh_of(1, 1), microbatches=300)(params, batch)
    assert value.dtype == gradients["w"].dtype == jnp.bfloat16
    assert float(value) == 4
    np.testing.assert_array_equal(gradients["w"].astype(np.float32), np.ones(4))


def test_aux_that_isnt_of_floating_point_is_the_last_microbatchs():
    def loss(params, batch):
        return jnp.sum(params * batch["x"]), {"key": batch["key"], "largest": jnp.argmax(batch["x"][0])}

    batch = {"x": jnp.eye(4), "key": jax.random.split(jax.random.key(0), 4)}
    one = {"x": batch["x"][:1], "key": batch["key"][0]}
    plan = partition(loss, jnp.ones((1, 4)), one, stages=1, has_aux=True)
    (_, aux), _ = pipeline(plan, mesh_of(1, 2), microbatches=2)(jnp.ones((1, 4)), batch)
    assert aux["largest"] == 3
    assert aux["key"] == batch["key"][3]


@pytest.mark.slow
def test_gradients_are_sharded_as_their_parameters_are():
    run, params, batch = made(2, 2, 2, "1f1b")
    sharding = jax.sharding.NamedSharding(run.mesh, jax.sharding.PartitionSpec("data"))
    params = {**params, "stacked": jax.device_put(params["stacked"], sharding)}
    value, gradients = run(params, batch)
    assert gradients["stacked"].sharding == sharding
    same((value, gradients), expected(params, batch, 4))


@pytest.mark.slow
def test_arguments_may_lie_on_a_mesh_with_explicit_axes():
    params, batch = arguments(4)
    mesh = jax.make_mesh((2, 2), ("stage", "data"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    whole = jax.sharding.NamedSharding(mesh, P())
    placed, one = jax.device_put((params, microbatch(batch, 0)), whole)
    run = pipeline(partition(loss, placed, one, stages=2, has_aux=True), mesh, microbatches=2)
    same(run(placed, jax.device_put(batch, whole)), expected(params, batch, 4))


@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("zb-h1", marks=pytest.mark.slow)])
def test_layers_are_sharded_along_other_axes(schedule):
    params, batch = arguments(8)
    plan = partition(loss, params, microbatch(batch, 0), stages=2, has_aux=True)
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("stage", "data", "model"))
    specs = {"tied": P(None, "model"), "layers": [P(None, "model"), P("model"), P()], "stacked": P(None, None, "model")}
    run = pipeline(plan, mesh, microbatches=4, schedule=schedule, param_specs=specs)
    placed = run.place(params)
    for leaf, spec in zip(jax.tree.leaves(placed), [*specs["layers"], specs["stacked"], specs["tied"]], strict=True):
        assert leaf.sharding.spec == spec
        assert {piece.data.size for piece in leaf.addressable_shards} == {leaf.size // (1 if spec == P() else 2)}
    value, gradients = run(placed, batch)
    assert jax.tree.map(lambda leaf: leaf.sharding, gradients) == jax.tree.map(lambda leaf: leaf.sharding, placed)
    same((value, gradients), expected(params, batch, 8))


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (P("stage"), "'stage'. Parameters can only lie along axes other than .*; this mesh has 'model'"),
        ({"tied": P("model")}, "isn't a prefix"),
        ({"tied": "model", "layers": P(), "stacked": P()}, r"'model' for \['tied'\]; it has to be a jax"),
        ({"tied": None, "layers": P(), "stacked": P()}, r"None for \['tied'\]; it has to be a jax"),
        (
            {"tied": P(), "layers": P(None, None, "model"), "stacked": P()},
            r"3 entries; \['layers'\]\[0\] has .*\(8, 8\)",
        ),
        ({"tied": P("model"), "layers": P(), "stacked": P()}, r"\['tied'\], .* \(20, 8\), into 3 parts; 20 isn't"),
    ],
)
def test_specs_that_dont_fit(specs, message):
    params, batch = arguments(1)
    plan = partition(loss, params, microbatch(batch, 0), stages=1, has_aux=True)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:3]).reshape(1, 1, 3), ("stage", "data", "model"))
    with pytest.raises(UsageError, match=message):
        pipeline(plan, mesh, microbatches=1, param_specs=specs)


def test_a_spec_along_the_layers_suits_each_stages_rows():
    params, batch = {"w": np.ones((6, 8, 8), np.float32)}, np.ones((2, 8), np.float32)
    plan = partition(
        lambda params, x: jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params["w"])[0]),
        params,
        batch,
        stages=2,
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("stage", "data", "model"))
    with pytest.raises(UsageError, match=r"\['w'\].*0.*3.*, which has the shape \(3, 8, 8\), into 2 parts"):
        pipeline(plan, mesh, microbatches=2, param_specs=P("model"))


def test_the_mesh_that_is_set_isnt_that_of_the_stages():
    """A mesh set by `jax.set_mesh` doesn't affect a pipeline."""
    params, batch = arguments(4)
    mesh = mesh_of(2, 2)
    with jax.set_mesh(mesh):
        plan = partition(loss, params, microbatch(batch, 0), stages=2, has_aux=True)
        run = pipeline(plan, mesh, microbatches=2)
        placed = run.place(params)
        optimizer = run.by_stage(optax.sgd(0.1, momentum=0.9))
        value, gradients = run(placed, batch)
        updates, _ = optimizer.update(gradients, optimizer.init(placed))
    same((value, gradients), expected(params, batch, 4))
    np.testing.assert_allclose(updates["stacked"], -0.1 * gradients["stacked"], rtol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint, jax.jit])
def test_a_constraint_on_sharding_is_refused_with_its_line(wrap):
    constrain = wrap(lambda x: jax.lax.with_sharding_constraint(x, P("data")))
    with (
        jax.set_mesh(mesh_of(2, 2)),
        pytest.raises(UsageError, match=r"test_pipeline.py:\d+ is for a mesh that no"),
    ):
        partition(lambda params, batch: jnp.sum(constrain(params * batch)), jnp.ones(4), jnp.ones(4), stages=1)


def test_a_table_of_ones_own():
    run, params, batch = made(2, 1, 2, gpipe(2, 2))
    assert run.schedule.name == "gpipe"
    same(run(params, batch), expected(params, batch, 2))


@pytest.mark.parametrize("wrap", [jax.jit, jax.vmap, lambda run: functools.partial(jax.eval_shape, run)])
def test_a_step_is_no_part_of_a_program(wrap):
    run, params, batch = made(1, 1, 1, "1f1b")
    with pytest.raises(UsageError, match="call it outside of jax.jit"):
        wrap(run)(*jax.tree.map(lambda leaf: leaf[np.newaxis], (params, batch)))


def test_hosts_dont_train_models_of_their_own(monkeypatch):
    """A session of several hosts must declare the data axis, whether opened before or after `pipeline` is called."""
    run, params, batch = made(2, 2, 2, "1f1b")
    session = SimpleNamespace(
        rank=0, world_size=2, settings=SimpleNamespace(job="job", axis_name=("batch",), world_size_min=None)
    )
    monkeypatch.setattr("jax_passing.host.session._current", session)
    message = r"session has 2 hosts, but the data axis 'data' isn't among .* \('batch'\)"
    with pytest.raises(UsageError, match=message):
        run(params, batch)
    with pytest.raises(UsageError, match=message):
        made(2, 2, 2, "1f1b")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule": "2f2b"}, "'2f2b'; it may be"),
        ({"schedule": gpipe(3, 4)}, "for 3 stages on 3 devices"),
        ({"schedule": gpipe(2, 3)}, "3 microbatches"),
        ({"stages": 4}, "has 4 stages and the mesh has 2 devices"),
        ({"stages": 3, "schedule": "interleaved"}, "3 stages aren't a multiple of 2"),
        ({"microbatches": 3, "schedule": "interleaved", "stages": 4}, "a multiple of 2 microbatches"),
        ({"stage_axis": "model"}, "needs 'model' and 'data'"),
        ({"stage_axis": "data"}, "are both 'data'"),
        ({"microbatches": 2.0}, "2.0; it has to be a whole number"),
    ],
)
def test_arguments_that_dont_fit_together(change, message):
    arguments_of = {"stages": 2, "schedule": "1f1b", "microbatches": 4, **change}
    params, batch = arguments(4)
    plan = partition(loss, params, microbatch(batch, 0), stages=arguments_of.pop("stages"), has_aux=True)
    with pytest.raises(UsageError, match=message):
        pipeline(plan, mesh_of(2, 1), **arguments_of)


def test_parameters_that_have_no_gradient():
    plan = partition(lambda params, batch: jnp.sum(params[0] * batch), [1.0, 2], jnp.ones(3), stages=1)
    with pytest.raises(UsageError, match="parameters of int32, but only"):
        pipeline(plan, mesh_of(1, 1), microbatches=1)


def test_batches_of_another_shape():
    run, params, batch = made(2, 2, 2, "1f1b")
    with pytest.raises(UsageError, match=r"shape has to be \(4, 3\) or \(12,\)"):
        run(params, {**batch, "tokens": batch["tokens"][:-1]})
    with pytest.raises(UsageError, match=r"random key is split .* jax.random.split\(key, 4\)"):
        run(params, {**batch, "key": batch["key"][0]})
    with pytest.raises(UsageError, match="is float32; the plan was made for int32"):
        run(params, {**batch, "tokens": batch["tokens"].astype(np.float32)})
    with pytest.raises(UsageError, match=r"another structure than the plan's: \['tokens'\] instead of \['key'\]\.$"):
        run(params, {"tokens": batch["tokens"]})
    with pytest.raises(UsageError, match=r"another structure .*: \['layers'\]\[3\] instead of \['stacked'\]\.$"):
        run({**params, "layers": params["layers"] + params["layers"][:1]}, batch)
    with pytest.raises(UsageError, match="the same paths, but other kinds of nodes"):
        run({**params, "layers": tuple(params["layers"])}, batch)

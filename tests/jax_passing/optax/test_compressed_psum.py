"""Means in few bits, and what error feedback makes of their errors: as its docstring says. Here is one host."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import PartitionSpec as P

from jax_passing.errors import ConfigError, UnvaryingInputError, UsageError
from jax_passing.optax import compressed_psum, powersgd, restart, set_to_zero
from jax_passing.optax.residuals import Residuals
from support.jax.optimizing import PARAMS, difference, exact_mean, gradients, largest, steps_of

pytestmark = pytest.mark.usefixtures("session")

DEVICES = 4
ROUNDING = 2.0**-21  # of a mean and a sum of numbers below 8


def some_residuals(state):
    """Returns a state with residuals of 1, as this one host, which rounds nothing, would never have."""
    return jax.tree.map(
        lambda each: jax.tree.map(jnp.ones_like, each) if isinstance(each, Residuals) else each,
        state,
        is_leaf=lambda each: isinstance(each, Residuals),
    )


def test_residuals_are_added_to_gradients(check_vma):
    transformation = compressed_psum("d")
    step, state = steps_of(transformation, DEVICES, check_vma), some_residuals(transformation.init(PARAMS))
    means, state = step(gradients(0, range(DEVICES)), state, PARAMS)
    assert difference(means, jax.tree.map(lambda mean: mean + 1, exact_mean(0, DEVICES))) < ROUNDING
    assert largest(state.residuals) == 0


@pytest.mark.parametrize("make", [compressed_psum, powersgd])
def test_gradients_that_are_summed_already(make):
    transformation = make("d")
    state = transformation.init(PARAMS)
    mesh = jax.make_mesh((DEVICES,), ("d",))
    with pytest.raises(UnvaryingInputError, match=f"^{make.__name__} over .* it needs no {make.__name__}: "):
        jax.shard_map(
            lambda grads: transformation.update(grads, state, PARAMS)[0], mesh=mesh, in_specs=P(), out_specs=P()
        )(PARAMS)


def test_without_feedback_the_state_is_empty():
    transformation = compressed_psum("d", error_feedback=False)
    state = transformation.init(PARAMS)
    assert jax.tree.leaves(state) == []
    means, state = steps_of(transformation, DEVICES)(gradients(0, range(DEVICES)), state, PARAMS)
    assert difference(means, exact_mean(0, DEVICES)) < ROUNDING


def test_leaves_that_no_wire_narrows_have_no_residual():
    with jax.enable_x64(True):
        params = {"double": jnp.zeros(5, jnp.float64), "whole": jnp.zeros(4, jnp.int32), "masked": None}
        params |= {"half": jnp.zeros(6, jnp.bfloat16), "complex": jnp.zeros(3, jnp.complex64)}
        transformation = compressed_psum("d", wire_dtype="int8")
        state = transformation.init(params)
        assert {name for name, leaf in state.residuals.leaves.items() if leaf is not None} == {"half", "complex"}
        assert state.residuals.leaves["half"].dtype == jnp.bfloat16
        rows = jax.tree.map(lambda p: (np.arange(4 * p.size).reshape(4, -1) / 3).astype(p.dtype), params)
        means, state = steps_of(transformation, DEVICES)(rows, state, params)
        np.testing.assert_allclose(means["double"], rows["double"].mean(0), rtol=2**-40)
        np.testing.assert_array_equal(means["whole"], rows["whole"].mean(0, dtype=np.float32))
        assert means["masked"] is None
        assert means["half"].dtype == jnp.bfloat16


def test_the_state_of_another_model_is_refused():
    transformation = compressed_psum("d")
    rows = gradients(0, range(DEVICES))
    for params, told in (
        ({**PARAMS, "w": jnp.zeros((40, 48))}, r"has a residual of shape \(40, 48\) for the leaf \['w'\], whose gradi"),
        ({**PARAMS, "b": jnp.zeros(7, jnp.int32)}, r"has no residual for the leaf \['b'\], whose gradient is float32"),
        ({"w": PARAMS["w"]}, "the gradients have another structure than the residuals"),
    ):
        with pytest.raises(ConfigError, match=f"compressed_psum: .*{told}.*optimizer.init"):
            steps_of(transformation, DEVICES)(rows, transformation.init(params), PARAMS)


def test_bad_arguments_are_refused():
    with pytest.raises(
        ConfigError, match="compressed_psum: unknown wire_dtype 'int7'. Known are full, int16, int8, int4"
    ):
        compressed_psum("d", wire_dtype="int7")
    transformation = compressed_psum("d")
    with pytest.raises(NameError, match="unbound axis name: d"):
        transformation.update(PARAMS, transformation.init(PARAMS))


def test_a_session_is_needed(session):
    session.shutdown()
    transformation = compressed_psum("d")
    with pytest.raises(UsageError, match=r"jax_passing.optax.compressed_psum"):
        steps_of(transformation, 2)(gradients(0, range(2)), transformation.init(PARAMS), PARAMS)


@pytest.mark.parametrize("function", [compressed_psum, powersgd])
def test_devices_that_are_ranks_have_no_common_residual(function):
    transformation = function("d", strategy="flat")
    with pytest.raises(ConfigError, match="with strategy 'flat' each device has a residual of its own"):
        steps_of(transformation, 2)(gradients(0, range(2)), transformation.init(PARAMS), PARAMS)


def test_restart_forgets_residuals_and_nothing_else():
    optimizer = optax.chain(compressed_psum("d"), optax.adam(0.1))
    state = some_residuals(optimizer.init(PARAMS))
    again = restart(state)
    assert largest(again[0]) == 0
    jax.tree.map(np.testing.assert_array_equal, state[1], again[1])
    assert jax.tree.structure(again) == jax.tree.structure(state)


def reference(optimizer, steps, params=PARAMS):
    """Returns the parameters after steps with the exact means."""
    state = optimizer.init(params)
    for number in range(steps):
        means = jax.tree.map(lambda mean: mean.astype(np.float32), exact_mean(number, DEVICES))
        updates, state = optimizer.update(means, state, params)
        params = optax.apply_updates(params, updates)
    return params


def trained(optimizer, steps, check_vma=True):
    step, state, params = steps_of(optimizer, DEVICES, check_vma), optimizer.init(PARAMS), PARAMS
    for number in range(steps):
        updates, state = step(gradients(number, range(DEVICES)), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


CLOSE = 4 * ROUNDING  # some steps


def test_in_a_chain_with_injected_hyperparameters():
    @optax.inject_hyperparams
    def make(learning_rate):
        return optax.chain(compressed_psum("d"), optax.sgd(learning_rate))

    params, state = trained(make(learning_rate=0.1), 3)
    assert difference(params, reference(optax.sgd(0.1), 3)) < CLOSE
    assert state.hyperparams["learning_rate"] == np.float32(0.1)


def test_masked_leaves_are_left_alone():
    mask = {"b": False, "w": True, "z": True}
    optimizer = optax.masked(compressed_psum("d"), mask)
    state = optimizer.init(PARAMS)
    assert len(jax.tree.leaves(state)) == 2
    mesh = jax.sharding.Mesh(jax.local_devices()[:DEVICES], ("d",))

    def step(rows, state):
        updates, state = optimizer.update(jax.tree.map(lambda row: row[0], rows), state)
        return updates["b"][None], (updates["w"], updates["z"]), state

    specs = {"in_specs": (P("d"), P()), "out_specs": (P("d"), P(), P())}
    own, means, _ = jax.jit(jax.shard_map(step, mesh=mesh, **specs))(gradients(0, range(DEVICES)), state)
    np.testing.assert_array_equal(own, gradients(0, range(DEVICES))["b"])
    exact = exact_mean(0, DEVICES)
    assert difference(means, (exact["w"], exact["z"])) < CLOSE


@pytest.mark.parametrize("make", [compressed_psum, powersgd])
@pytest.mark.parametrize("beside", ["partition", "masked"])
def test_parameters_that_are_not_trained(make, beside, check_vma):
    trained_alone = optax.chain(make("d"), optax.sgd(0.1))
    if beside == "partition":
        labels = {"b": "kept", "w": "trained", "z": "trained"}
        optimizer = optax.partition({"trained": trained_alone, "kept": set_to_zero()}, labels)
    else:
        mask = {"b": False, "w": True, "z": True}
        others = jax.tree.map(lambda each: not each, mask)
        optimizer = optax.chain(optax.masked(trained_alone, mask), optax.masked(set_to_zero(), others))
    state = optimizer.init(PARAMS)
    updates, _ = steps_of(optimizer, DEVICES, check_vma)(gradients(0, range(DEVICES)), state, PARAMS)
    np.testing.assert_array_equal(updates["b"], np.zeros(7, np.float32))
    assert difference(updates["z"], -0.1 * exact_mean(0, DEVICES)["z"]) < CLOSE


def test_multi_steps_uses_the_last_sum_of_each_few():
    """Its accumulators are each device's own, so types don't allow it: check_vma=False, where the devices keep them."""
    params, _ = trained(optax.MultiSteps(optax.chain(compressed_psum("d"), optax.sgd(0.1)), 2), 4, check_vma=False)
    exact = [exact_mean(number, DEVICES) for number in range(4)]
    expected = jax.tree.map(lambda *each: -0.1 * np.mean(each, 0) * 2, *exact)
    assert difference(params, expected) < CLOSE


def test_multi_steps_belongs_behind_the_sum_where_types_say_so():
    for make in (compressed_psum, powersgd):
        name = make.__name__
        with pytest.raises(ConfigError, match=rf"MultiSteps around {name} .*optax.chain\({name}\(\.\.\.\)"):
            trained(optax.MultiSteps(make("d"), 2), 1)
    behind = optax.chain(compressed_psum("d"), optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation())
    params, _ = trained(behind, 2)
    assert difference(params["z"], -0.1 * np.mean([exact_mean(number, DEVICES)["z"] for number in range(2)], 0)) < CLOSE


def test_in_a_train_state_of_flax():
    optimizer = optax.chain(compressed_psum("d"), optax.sgd(0.1))
    train_state = TrainState.create(apply_fn=None, params=PARAMS, tx=optimizer)
    mesh = jax.sharding.Mesh(jax.local_devices()[:DEVICES], ("d",))

    def step(state, rows):
        return state.apply_gradients(grads=jax.tree.map(lambda row: row[0], rows))

    step = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P("d")), out_specs=P()))
    for number in range(3):
        train_state = step(train_state, gradients(number, range(DEVICES)))
    assert difference(train_state.params, reference(optax.sgd(0.1), 3)) < CLOSE


def test_in_an_optimizer_of_nnx():
    model = nnx.Linear(6, 5, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.chain(compressed_psum("d"), optax.sgd(0.1)), wrt=nnx.Param)
    before = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    before = jax.tree.map(np.asarray, before)
    mesh = jax.sharding.Mesh(jax.local_devices()[:DEVICES], ("d",))
    x = np.random.default_rng(0).normal(size=(DEVICES, 6)).astype(np.float32)

    def step(graph_state, x):
        model, optimizer = nnx.merge(graph, graph_state)
        own, rest = nnx.state(model, nnx.Param), nnx.graphdef(model)
        varying = jax.lax.pcast(own, "d", to="varying")
        grads = jax.grad(lambda params: (nnx.merge(rest, params)(x) ** 2).mean())(varying)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer))

    optimizer.opt_state = some_residuals(optimizer.opt_state)
    graph, state = nnx.split((model, optimizer))
    state = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P("d")), out_specs=P()))(state, x)
    model, optimizer = nnx.merge(graph, state)
    after = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    exact = jax.grad(lambda p: ((x @ p["kernel"] + p["bias"][None]) ** 2).mean())(before)
    assert difference(after, jax.tree.map(lambda p, g: p - 0.1 * (g + 1), before, exact)) < CLOSE
    assert largest(nnx.to_pure_dict(nnx.state(optimizer.opt_state[0]))) == 0
    again = restart(some_residuals(optimizer.opt_state))
    assert largest(nnx.to_pure_dict(nnx.state(again[0]))) == 0


def test_pmap():
    transformation = compressed_psum("d")
    state = some_residuals(transformation.init(PARAMS))
    state = jax.tree.map(lambda leaf: jnp.stack([leaf] * DEVICES), state)
    means, state = jax.pmap(transformation.update, axis_name="d")(gradients(0, range(DEVICES)), state)
    for device in range(DEVICES):
        mean = jax.tree.map(lambda leaf, i=device: leaf[i], means)
        assert difference(mean, jax.tree.map(lambda mean: mean + 1, exact_mean(0, DEVICES))) < ROUNDING
    assert largest(state) == 0

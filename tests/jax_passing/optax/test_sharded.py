"""Optimizers of which each device has a part. Here is one host; tests/end_to_end has several."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.errors import ConfigError, UnvaryingInputError
from jax_passing.optax import Part, all_reduce, deal, gather, part_specs, sharded
from support.jax.on_mesh import bits
from support.jax.optimizing import difference, largest
from support.jax.sharding import PARAMS, Sharded, adamw_bound, bytes_of_device, exact_gradients, exact_mean

pytestmark = pytest.mark.usefixtures("session")

DEVICES = 4
FLOATS = {name: leaf for name, leaf in PARAMS.items() if leaf.dtype == jnp.float32 and leaf.size}
STEPS = 2


def compare(inner, params=PARAMS, **options):
    """Yields after each step the updates, those of the optimizer on whole arrays, and both states."""
    ours, update, state = Sharded(inner, DEVICES, params, **options), jax.jit(inner.update), inner.init(params)
    for step in range(STEPS):
        expected, state = update(exact_mean(step, DEVICES, params), state, params)
        found = ours.update(exact_gradients(step, range(DEVICES), params), params)
        assert jax.tree.structure(ours.whole_state()) == jax.tree.structure(state)
        yield found, expected, ours.whole_state(), state
        params = optax.apply_updates(params, expected)


def test_sgd_has_the_bits_of_whole_arrays(check_vma):
    inner = optax.sgd(optax.cosine_decay_schedule(0.1, 10), momentum=0.9, nesterov=True)
    for found, expected, state, whole in compare(inner, check_vma=check_vma, donate=check_vma):
        assert bits(found) == bits(expected)
        assert bits(state) == bits(whole)


def test_a_step_of_adamw_is_within_its_bound():
    rate, decay = 0.01, 0.1
    inner = optax.adamw(rate, weight_decay=decay)
    ours, params = Sharded(inner, DEVICES, FLOATS), FLOATS
    for step in range(3):
        state, mean = ours.whole_state(), exact_mean(step, DEVICES, FLOATS)
        expected, _ = jax.jit(inner.update)(mean, state, params)
        found = ours.update(exact_gradients(step, range(DEVICES), FLOATS), params)
        bounds = adamw_bound(state, mean, params, rate, decay)
        for ours_, theirs, bound in zip(*map(jax.tree.leaves, (found, expected, bounds)), strict=True):
            assert (np.abs(np.float64(ours_) - np.float64(theirs)) <= bound).all()
        params = optax.apply_updates(params, found)


def is_float(leaf):
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def frozen():
    labels = dict.fromkeys(FLOATS, "trained") | {"weight": "frozen"}
    return optax.partition({"trained": optax.adam(0.01), "frozen": optax.set_to_zero()}, labels)


@pytest.mark.parametrize(
    "inner",
    [
        optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1)),
        optax.apply_if_finite(optax.adam(0.01), 2),
        optax.MultiSteps(optax.adam(0.01), 2).gradient_transformation(),
        optax.inject_hyperparams(optax.adamw)(optax.linear_schedule(0.01, 0, 5)),
        optax.chain(optax.add_noise(0.1, 0.9, 0), optax.lamb(0.01)),
        optax.contrib.prodigy(),
        frozen(),
    ],
    ids=["clip", "apply_if_finite", "MultiSteps", "inject_hyperparams", "noise and lamb", "prodigy", "frozen"],
)
def test_the_updates_are_those_of_whole_arrays(inner):
    for found, expected, state, whole in compare(inner, FLOATS):
        assert difference(found, expected) < 2.0**-18 * max(1, largest(expected))
        ours, theirs = ([leaf for leaf in jax.tree.leaves(tree) if is_float(leaf)] for tree in (state, whole))
        assert not theirs or difference(ours, theirs) < 2.0**-18 * max(1, largest(theirs))


def test_masks_mean_whole_arrays():
    """Parts have one dimension, and paths of their own."""

    def mask(params):
        return jax.tree_util.tree_map_with_path(lambda path, p: p.ndim > 1 and p.shape[0] == 40, params)

    inner = optax.chain(optax.add_decayed_weights(0.5, mask=mask), optax.sgd(1.0))
    for found, expected, *_ in compare(inner):
        assert bits(found) == bits(expected)


def test_values_that_are_not_finite_are_noticed_wherever_they_are():
    ours = Sharded(optax.apply_if_finite(optax.sgd(0.1), 10), DEVICES, FLOATS)
    for number, (device, at) in enumerate([(0, 0), (3, 1919), (1, 700)], 1):
        rows = exact_gradients(0, range(DEVICES), FLOATS)
        rows["weight"][device].reshape(-1)[at] = np.nan
        assert largest(ours.update(rows, FLOATS)) == 0
        assert int(ours.state.total_notfinite) == number
        assert largest(ours.update(exact_gradients(0, range(DEVICES), FLOATS), FLOATS)) > 0


@pytest.mark.parametrize(
    ("inner", "says"),
    [
        (optax.contrib.muon(0.1), r"transpose.* of the gradient\['matrix'\] \(_muon.py"),
        (optax.adafactor(0.1, min_dim_size_to_factor=4), r"reduce_sum\[8, 6\] of the gradient\['matrix'\]"),
        (optax.adaptive_grad_clip(0.1), r"reduce_sum\[8, 6\]"),
        (optax.lbfgs(0.1, linesearch=None), "of the parameter|of the gradient"),
        (optax.stateless(lambda g, p: jax.tree.map(lambda x: jnp.sort(x, axis=-1) if x.ndim else x, g)), "sort"),
    ],
    ids=["muon", "adafactor", "adaptive_grad_clip", "lbfgs", "sort"],
)
def test_what_mixes_elements_is_refused_by_name(inner, says):
    params = {"matrix": jnp.zeros((8, 6))}
    with pytest.raises(ConfigError, match=says):
        Sharded(inner, DEVICES, params).update(exact_gradients(0, range(DEVICES), params), params)


def test_what_is_refused_can_have_whole_arrays_beside_it():
    labels = dict.fromkeys(FLOATS, "dealt") | {"weight": "whole"}
    whole = optax.chain(all_reduce("d"), optax.adafactor(0.1, min_dim_size_to_factor=4))
    mesh = jax.sharding.Mesh(jax.local_devices()[:DEVICES], ("d",))
    optimizer = optax.partition({"dealt": sharded(optax.sgd(0.1), "d", mesh), "whole": whole}, labels)
    state = optimizer.init(FLOATS)
    specs = part_specs(state, "d")
    step = jax.shard_map(
        lambda rows, state: optimizer.update(jax.tree.map(lambda row: row[0], rows), state, FLOATS),
        mesh=mesh, in_specs=(P("d"), specs), out_specs=(P(), specs),
    )  # fmt: skip
    found, _ = jax.jit(step)(exact_gradients(0, range(DEVICES), FLOATS), state)
    assert bits(found["bias"]) == bits(-0.1 * jnp.asarray(exact_mean(0, DEVICES, FLOATS)["bias"]))
    assert largest(found["weight"]) > 0


def with_parts(optimizer, mesh, check_vma=True):
    """Returns parts of FLOATS, a state, and a step: (parts, state, rows) to parts and a state."""
    parts, state = deal(FLOATS, "d", mesh), optimizer.init(FLOATS)

    def step(parts, state, rows):
        updates, state = optimizer.update(jax.tree.map(lambda row: row[0], rows), state, parts)
        return optax.apply_updates(parts, updates), state

    specs = part_specs(parts, "d"), part_specs(state, "d")
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(*specs, P("d")), out_specs=specs, check_vma=check_vma)
    return parts, state, jax.jit(mapped)


def test_parameters_may_be_dealt_as_well(check_vma):
    inner, mesh = optax.sgd(0.1, momentum=0.9), jax.sharding.Mesh(jax.local_devices()[:DEVICES], ("d",))
    parts, of_parts, step_of_parts = with_parts(sharded(inner, "d", mesh), mesh, check_vma)
    params, state = FLOATS, inner.init(FLOATS)
    for step in range(STEPS):
        parts, of_parts = step_of_parts(parts, of_parts, exact_gradients(step, range(DEVICES), FLOATS))
        updates, state = jax.jit(inner.update)(exact_mean(step, DEVICES, FLOATS), state)
        params = optax.apply_updates(params, updates)
    assert isinstance(parts["weight"], Part)
    assert bits(gather(parts, "d", mesh)) == bits(params)


@pytest.mark.parametrize(
    "behind",
    [
        optax.clip_by_global_norm(0.1), optax.add_noise(0.1, 0.9, 0), optax.scale(0.5), optax.add_decayed_weights(0.1),
        optax.stateless(lambda updates, _: jax.tree.map(lambda x: x / jnp.sum(x), updates)),
    ],
    ids=["clip", "noise", "scale", "decay", "sum"],
)  # fmt: skip
def test_nothing_else_than_an_addition_takes_updates_of_parts(behind):
    """A transformation would take a device's part for all elements."""
    mesh = jax.sharding.Mesh(jax.local_devices()[:DEVICES], ("d",))
    parts, state, step = with_parts(optax.chain(sharded(optax.sgd(0.1), "d", mesh), behind), mesh)
    with pytest.raises(ConfigError, match=r"are of this device alone.*inside, as sharded\(optax.chain"):
        jax.eval_shape(step, parts, state, exact_gradients(0, range(DEVICES), FLOATS))


def test_a_device_has_its_part_of_the_bytes():
    params = {"layer": jnp.zeros((100, 100)), "bias": jnp.zeros(100), "other": jnp.zeros((33, 77), jnp.bfloat16)}
    inner = optax.adamw(0.01, mu_dtype=jnp.float32)
    ours = Sharded(inner, DEVICES, params)
    ours.update(exact_gradients(0, range(DEVICES), params), params)
    whole = bytes_of_device(jax.device_put(inner.init(params), jax.local_devices()[0]))
    assert whole / DEVICES <= bytes_of_device(ours.state) <= 1.05 * whole / DEVICES


def jitted(inner):
    return optax.GradientTransformation(inner.init, jax.jit(inner.update))


@pytest.mark.parametrize("inner", [frozen(), jitted(frozen())], ids=["plain", "jitted"])
def test_gradients_of_what_is_frozen_do_not_travel(inner):
    ours = Sharded(inner, DEVICES, FLOATS)
    ours.update(exact_gradients(0, range(DEVICES), FLOATS), FLOATS)
    lowered = ours._step.lower(exact_gradients(0, range(DEVICES), FLOATS), ours.state, FLOATS).as_text()
    assert "40x6x8" in lowered
    assert "4x480" not in lowered  # the parts of the weight
    assert "4x2x" in lowered  # those of the bias


def test_nothing_to_train():
    ours = Sharded(optax.adam(0.1), DEVICES, {})
    assert ours.update({}, {}) == {}


def test_it_says_what_is_wrong():
    with pytest.raises(ConfigError, match="give sharded the mesh"):
        sharded(optax.sgd(0.1), "d").init(PARAMS)
    params = {"weight": jnp.zeros(13)}
    ours, rows = Sharded(optax.adam(0.1), 2, params), exact_gradients(0, range(2), params)
    for state, says in (
        (Sharded(optax.adam(0.1), DEVICES, params).state, "deal a state that was made for another number of devices"),
        (Sharded(optax.adam(0.1), DEVICES, {"weight": jnp.zeros(8)}).state, "no parameter has this shape"),
    ):
        other = Sharded(optax.adam(0.1), 2, params)
        other.state = jax.device_get(state)
        with pytest.raises(ConfigError, match=says):
            other.update(rows, params)
    around = optax.MultiSteps(ours.optimizer, 2)
    state = jax.eval_shape(around.init, params)
    mapped = jax.shard_map(
        lambda rows, state: around.update(jax.tree.map(lambda row: row[0], rows), state, params)[0],
        mesh=ours.mesh, in_specs=(P("d"), part_specs(state, "d")), out_specs=P(),
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"sharded\(optax.MultiSteps"):
        jax.eval_shape(mapped, rows, state)
    with pytest.raises(UnvaryingInputError):
        jax.eval_shape(
            jax.shard_map(
                lambda grads, state: ours.optimizer.update(grads, state, params)[0],
                mesh=ours.mesh, in_specs=(P(), part_specs(ours.state, "d")), out_specs=P(),
            ), params, ours.state,
        )  # fmt: skip


def test_gradients_of_parts_are_refused(check_vma):
    params = {"weight": jnp.ones(12)}
    ours = Sharded(optax.sgd(0.1), DEVICES, params)
    parts = deal(params, "d", ours.mesh)

    def step(parts, state):
        gradients = jax.grad(lambda parts: jnp.sum(gather(parts, "d")["weight"] ** 2))(parts)
        return ours.optimizer.update(gradients, state, parts)[1]

    specs = part_specs(parts, "d"), part_specs(ours.state, "d")
    mapped = jax.shard_map(step, mesh=ours.mesh, in_specs=specs, out_specs=specs[1], check_vma=check_vma)
    with pytest.raises(ConfigError, match="gather the parts outside of the loss"):
        jax.eval_shape(mapped, parts, ours.state)


def test_extra_arguments_are_the_same_on_all_devices():
    ours, rows = Sharded(optax.polyak_sgd(1.0), DEVICES, FLOATS), exact_gradients(0, range(DEVICES), FLOATS)

    def updates(value_of, losses):
        mapped = jax.shard_map(
            lambda rows, losses: ours.optimizer.update(
                jax.tree.map(lambda row: row[0], rows), ours.state, FLOATS, value=value_of(losses[0])
            )[0],
            mesh=ours.mesh, in_specs=(P("d"), P("d")), out_specs=P(),
        )  # fmt: skip
        return jax.jit(mapped)(rows, losses)

    losses = jnp.arange(1, 1.0 + DEVICES)
    with pytest.raises(ConfigError, match=r"the argument\['value'\] of update varies.*pmean"):
        updates(lambda loss: loss, losses)
    inner, mean = optax.polyak_sgd(1.0), exact_mean(0, DEVICES, FLOATS)
    expected, _ = inner.update(mean, inner.init(FLOATS), FLOATS, value=jnp.mean(losses))
    for value_of in (lambda loss: jax_passing.pmean(loss, "d"), lambda _: 2.5):
        assert difference(updates(value_of, losses), expected) < 2.0**-18 * max(1, largest(expected))

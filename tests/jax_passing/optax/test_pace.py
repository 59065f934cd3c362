"""Trainings at a looser pace in a world of one host: what their states hold, and which arguments they refuse.

tests/end_to_end/programs/pace compares them with numpy on several hosts."""

import re
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import jax_passing
import jax_passing.optax as pace
from jax_passing.errors import ConfigError, UnvaryingInputError
from jax_passing.optax.fragments import make_fragments, offset

pytestmark = pytest.mark.filterwarnings("error::jax_passing.errors.UnfinishedHandlesWarning")
PARAMS = {"w": np.ones((4, 2), np.float32), "b": np.ones(3, np.float32)}
SGD = optax.sgd(0.5)


def mapped(f, in_specs=P(), out_specs=P(), check_vma=True):
    mesh = jax.sharding.Mesh(jax.local_devices()[:2], ("d",))
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma))


def step_of(optimizer, check_vma):
    def step(params, state, scale):
        gradients = jax.tree.map(lambda leaf: leaf * scale[0], params)  # each device's own
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    return mapped(step, (P(), P(), P("d")), check_vma=check_vma)


SCALES = np.array([0.25, 0.75], np.float32)  # mean 1/2: exact


@pytest.mark.parametrize(
    ("number", "value", "make"),
    [
        ("staleness", -1, lambda value: pace.stale(SGD, "d", value)),
        ("staleness", True, lambda value: pace.stale(SGD, "d", value)),
        ("every", 0, lambda value: pace.local_sgd(SGD, "d", every=value)),
        ("every", 2.0, lambda value: pace.diloco(SGD, None, "d", every=value)),
        ("fragments", 0, lambda value: pace.diloco(SGD, None, "d", every=2, fragments=value)),
        ("delay", -1, lambda value: pace.diloco(SGD, None, "d", every=2, delay=value)),
        ("mixing", 1.0, lambda value: pace.diloco(SGD, None, "d", every=2, mixing=value)),
        ("mixing", "half", lambda value: pace.diloco(SGD, None, "d", every=2, mixing=value)),
    ],
)
def test_numbers_out_of_range_are_refused(number, value, make):
    with pytest.raises(ConfigError, match=re.escape(f"{number}={value!r}): expected")):
        make(value)


def test_so_many_sums_as_handles_can_be_kept():
    pace.stale(SGD, "d", 63)
    with pytest.raises(ConfigError, match="Write staleness=63 or less"):
        pace.stale(SGD, "d", 64)


def test_a_delay_has_an_end_before_the_next_sum():
    with pytest.raises(ConfigError, match="Write delay=3 or less"):
        pace.diloco(SGD, None, "d", every=4, delay=4)


@pytest.mark.parametrize(
    ("arguments", "kept"), [({"delay": 0}, 1.0), ({"delay": 2}, 0.5), ({"delay": 2, "mixing": 0.0}, 0.0)]
)
def test_steps_of_the_delay_are_kept_by_half(session, arguments, kept):
    """As published; without a delay a host starts from what is shared."""
    optimizer = pace.diloco(optax.scale(-1.0), optax.sgd(1.0), "d", every=4, **arguments)

    def step(params, state, gradient):
        updates, state = optimizer.update({"w": gradient[0]}, state, params)
        return optax.apply_updates(params, updates), state

    step, params = mapped(step, (P(), P(), P("d"))), {"w": np.zeros((), np.float32)}
    state = optimizer.init(params)
    for gradient in (4, 3, 2, 1, 0.5, 0.25):  # four steps that are shared, and two of the delay
        params, state = step(params, state, np.full(2, gradient, np.float32))
    assert float(pace.shared_params(state, params)["w"]) == -10
    assert float(params["w"]) == -10 - 0.75 * kept


def test_a_fragment_has_an_array(session):
    with pytest.raises(ConfigError, match="Write fragments=2 or less"):
        pace.diloco(SGD, None, "d", every=4, fragments=3).init(PARAMS)
    with pytest.raises(ConfigError, match="have no arrays"):
        pace.diloco(SGD, None, "d", every=4).init({})


def test_only_floats_have_a_mean_of_how_far_they_went(session):
    params = {**PARAMS, "count": np.arange(3, dtype=np.int32)}
    with pytest.raises(ConfigError, match=r"the parameter \['count'\] is int32.*optax.set_to_zero.*by optax.partition"):
        pace.diloco(SGD, None, "d", every=4).init(params)
    # As the message says, beside another one that isn't trained.
    labels = {"w": "trained", "b": "kept", "count": "kept"}
    diloco = pace.diloco(optax.sgd(1.0), optax.sgd(1.0), "d", every=1)
    optimizer = optax.partition({"trained": diloco, "kept": pace.set_to_zero()}, labels)

    def step(params, state, scale):
        own = jax.lax.pcast(params, "d", to="varying")

        def loss(own):
            return jnp.sum(own["w"]) * scale[0] + jnp.sum(own["b"]) * own["count"][1].astype(np.float32)

        updates, state = optimizer.update(jax.grad(loss, allow_int=True)(own), state, params)
        return optax.apply_updates(params, updates), state

    after, state = mapped(step, (P(), P(), P("d")))(params, optimizer.init(params), SCALES)
    expected = params | {"w": params["w"] - np.float32(0.5)}
    jax.tree.map(np.testing.assert_array_equal, after, expected)
    jax.tree.map(np.testing.assert_array_equal, pace.shared_params(state, params), expected)


@pytest.mark.parametrize(
    "make", [pace.local_sgd, lambda inner, axis, every: pace.diloco(inner, None, axis, every=every)]
)
def test_hosts_need_their_parameters_and_each_device_its_gradients(session, make):
    optimizer = make(SGD, "d", every=2)
    state = optimizer.init(PARAMS)
    with pytest.raises(ConfigError, match="update\\(gradients, state, params\\)"):
        mapped(lambda params: optimizer.update(params, state))(PARAMS)
    with pytest.raises(UnvaryingInputError):
        mapped(lambda params: optimizer.update(params, state, params))(PARAMS)


def test_steps_that_wait_apply_nothing_and_later_ones_the_mean_of_then(session, check_vma):
    optimizer = pace.stale(optax.scale_by_schedule(lambda count: -jnp.exp2(-count.astype(np.float32))), "d", 2)
    params, state = PARAMS, optimizer.init(PARAMS)
    step = step_of(optimizer, check_vma)
    seen = []
    for _ in range(4):
        params, state = step(params, state, SCALES)
        seen.append(float(params["b"][0]))
    # Gradients are half the parameters, 1/2 in the first steps. The second one is applied at half the rate.
    assert seen == [1, 1, 0.5, 0.25]
    assert int(state.inner.count) == 2
    assert [bool(pending.is_running) for pending in state.pending] == [True, True]
    assert not any(pending.is_running for pending in mapped(pace.finish, check_vma=check_vma)(state).pending)


@pytest.mark.parametrize(
    ("make", "sums_stay"),
    [
        (lambda inner: pace.stale(inner, "d", 1), True),
        (lambda inner: pace.diloco(inner, None, "d", every=2, delay=1), True),
        (lambda inner: pace.diloco(inner, None, "d", every=2), False),
        (lambda inner: pace.local_sgd(inner, "d", every=2), False),
    ],
    ids=["stale", "diloco with a delay", "diloco", "local_sgd"],
)
def test_multi_steps_belongs_inside(session, make, sums_stay, check_vma):
    """Around, it would drop sums that are on their way, or have accumulators that are each device's own."""
    around, inside = optax.MultiSteps(make(SGD), 2), make(optax.MultiSteps(SGD, 2))
    refused = sums_stay or check_vma
    with pytest.raises(ConfigError, match=r"MultiSteps around .*\(optax.MultiSteps") if refused else nullcontext():
        step_of(around, check_vma)(PARAMS, around.init(PARAMS), SCALES)
    params, state = PARAMS, inside.init(PARAMS)
    step = step_of(inside, check_vma)
    for _ in range(4):
        params, state = step(params, state, SCALES)
    mapped(pace.finish, check_vma=check_vma)(state)
    assert np.all(params["w"] < 1)


def test_no_staleness_is_a_mean_and_the_inner_optimizer(session, check_vma):
    def mean(params, scale):
        gradients = jax_passing.pmean(jax.tree.map(lambda leaf: leaf * scale[0], params), "d")
        return optax.apply_updates(params, SGD.update(gradients, SGD.init(params))[0])

    optimizer = pace.stale(SGD, "d", 0)
    scales = np.array([0.1, 0.7], np.float32)
    got, _ = step_of(optimizer, check_vma)(PARAMS, optimizer.init(PARAMS), scales)
    expected = mapped(mean, (P(), P("d")), check_vma=check_vma)(PARAMS, scales)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_a_restarted_state_has_nothing_on_its_way_and_goes_on(session):
    optimizer = optax.chain(optax.clip(100.0), pace.diloco(SGD, optax.sgd(1.0), "d", every=4, fragments=2, delay=1))
    step = step_of(optimizer, check_vma=True)
    params, state = PARAMS, optimizer.init(PARAMS)
    for _ in range(4):
        params, state = step(params, state, SCALES)
    first, second = state[1].fragments
    assert (bool(first.pending.is_running), bool(second.pending.is_running)) == (True, False)
    shared = pace.shared_params(state, params)
    started, state = state, pace.restart(state)
    assert not any(fragment.pending.is_running for fragment in state[1].fragments)
    params, state = step(params, state, SCALES)  # nothing arrives
    after = pace.shared_params(state, params)
    jax.tree.map(np.testing.assert_array_equal, after, shared)
    mapped(pace.finish)(started)  # as if it were another host's
    for _ in range(4):
        params, state = step(params, state, SCALES)
    assert any(np.any(after[name] != pace.shared_params(state, params)[name]) for name in after)
    mapped(pace.finish)(state)


def test_shared_parameters_are_those_of_this_state(session):
    state = pace.diloco(SGD, None, "d", every=2).init(PARAMS)
    jax.tree.map(np.testing.assert_array_equal, pace.shared_params((state, ()), PARAMS), PARAMS)
    with pytest.raises(ConfigError, match="0 states of diloco"):
        pace.shared_params(SGD.init(PARAMS), PARAMS)
    with pytest.raises(ConfigError, match="other parameters"):
        pace.shared_params(state, {"w": jnp.ones(3)})


def test_equal_layers_are_dealt_out_in_turns():
    paths = [f"['layer_{number}']['{name}']" for number in (0, 1, 10, 11, 2, 3) for name in ("bias", "kernel")]
    sizes = [4 if "bias" in path else 400 for path in paths]
    layers = [{re.findall(r"\d+", paths[index])[0] for index in each} for each in make_fragments(paths, sizes, 3)]
    assert layers == [{"0", "3"}, {"1", "10"}, {"2", "11"}] or layers == [{"0", "3"}, {"1", "10"}, {"2", "11"}][::-1]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_every_array_is_in_one_fragment_and_none_is_much_larger(count):
    random = np.random.default_rng(count)
    sizes = random.integers(0, 100, 20).tolist()
    fragments = make_fragments([str(index) for index in range(20)], sizes, count)
    assert sorted(index for fragment in fragments for index in fragment) == list(range(20))
    assert all(fragments)
    bytes_of = [sum(sizes[index] for index in fragment) for fragment in fragments]
    assert max(bytes_of) - min(bytes_of) <= max(sizes)


def test_fragments_take_turns():
    assert [offset(number, 4, 16) for number in range(4)] == [0, 4, 8, 12]
    assert [offset(number, 3, 2) for number in range(3)] == [0, 0, 1]


def test_survivors_keep_what_is_theirs_and_newcomers_begin_with_what_is_shared(session):
    optimizer = optax.chain(optax.clip(100.0), pace.diloco(optax.sgd(0.5, momentum=0.5), None, "d", every=4, delay=1))
    step = step_of(optimizer, check_vma=True)
    params, state = PARAMS, optimizer.init(PARAMS)
    for _ in range(4):
        params, state = step(params, state, SCALES)
    agreed = mapped(lambda *args: pace.agree(args[0], args[1], "d", args[2]))
    for is_newcomer in (True, False):
        own, after = agreed(state, params, is_newcomer)
        expected = PARAMS if is_newcomer else params  # rank 0 is this host itself
        jax.tree.map(np.testing.assert_array_equal, own, expected)
        assert int(after[1].steps) == 4
        assert not after[1].fragments[0].pending.is_running
    jax.tree.map(np.testing.assert_array_equal, after[1].inner, state[1].inner)
    mapped(pace.finish)(state)
    with pytest.raises(ConfigError, match="0 states of diloco"):
        mapped(lambda params: pace.agree(SGD.init(params), params, "d", False))(PARAMS)


@pytest.mark.parametrize(
    "make", [pace.local_sgd, lambda inner, axis, every: pace.diloco(inner, optax.sgd(1.0), axis, every=every)]
)
def test_narrow_updates_lead_to_wide_parameters(session, make):
    """They round how far it is to the mean, never the mean."""
    optimizer = make(optax.scale(-0.001), "d", every=1)

    def step(params, state, scale):
        gradients = jax.tree.map(lambda leaf: jnp.full(leaf.shape, scale[0], jnp.bfloat16), params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    params = {"w": np.full(3, 100.3, np.float32)}
    after, _ = mapped(step, (P(), P(), P("d")))(params, optimizer.init(params), SCALES)
    np.testing.assert_allclose(after["w"], params["w"], atol=0.001)


@pytest.mark.parametrize(
    "make", [lambda: pace.stale(SGD, "d", 2), lambda: pace.diloco(SGD, None, "d", every=2, fragments=2, delay=1)]
)
def test_in_an_optimizer_of_nnx(session, make):
    model = nnx.Linear(6, 5, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, make(), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    def step(state, scale):
        model, optimizer = nnx.merge(graph, state)
        optimizer.update(model, jax.tree.map(lambda leaf: leaf * scale[0], nnx.state(model, nnx.Param)))
        return nnx.state((model, optimizer))

    def finish(state):
        model, optimizer = nnx.merge(graph, state)
        optimizer.opt_state = pace.finish(optimizer.opt_state)
        return nnx.state((model, optimizer))

    start = np.asarray(model.kernel[...])
    step = mapped(step, (P(), P("d")))
    for _ in range(4):
        state = step(state, SCALES)
    state = step(mapped(finish)(state), SCALES)
    model, optimizer = nnx.merge(graph, mapped(finish)(state))
    assert np.all(np.abs(model.kernel[...]) < np.abs(start))

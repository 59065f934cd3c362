"""The positions where `partition` cuts a model, and the losses that it refuses."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing import partition
from jax_passing.errors import UsageError
from support.jax.plans import PLAIN, check_plan, plain


def test_marks_say_where_to_cut():
    def loss(params, batch):
        x = batch
        for layer, weight in enumerate(params):
            x = jnp.tanh(x @ weight)
            x = jax_passing.cut(x) if layer in (0, 3) else x
        return jnp.sum(x)

    plan = partition(loss, *PLAIN, stages=3)
    assert [facts.params // 16 for facts in plan.facts] == [1, 3, 1]
    check_plan(plan, loss, *PLAIN)
    assert partition(loss, *PLAIN, stages=2).facts[0].params // 16 in (1, 4)
    with pytest.raises(UsageError, match="2 marks .* too few for 4 stages"):
        partition(loss, *PLAIN, stages=4)


def test_a_mark_of_several_arrays_is_one_place():
    def loss(params, batch):
        x, y = batch, 2 * batch
        for weight in params:
            x, y = jax_passing.cut((jnp.tanh(x @ weight), y @ weight))
        return jnp.sum(x * y)

    plan = partition(loss, *PLAIN, stages=5)
    assert [facts.params // 16 for facts in plan.facts] == [1, 1, 1, 1, 1]
    assert [facts.sent_count for facts in plan.facts] == [2, 2, 2, 2, 0]
    check_plan(plan, loss, *PLAIN)
    with pytest.raises(UsageError, match="5 marks .* too few for 7 stages"):
        partition(loss, *PLAIN, stages=7)


def test_at_most_max_live_arrays_cross_a_cut():
    """In the middle of this model, where a cut would be best, three arrays would cross it; before the middle one."""

    def loss(params, batch):
        x = batch
        for weight in params[:3]:
            x = jnp.tanh(x @ weight)
        parts = [jnp.tanh(x @ weight) for weight in params[3:6]]
        parts = [jnp.tanh(part @ weight) for part, weight in zip(parts, params[6:], strict=True)]
        return sum(map(jnp.sum, parts))

    params, batch = [jnp.eye(4)] * 9, jnp.ones((2, 4))
    free, bound = (partition(loss, params, batch, stages=2, max_live=most) for most in (3, 1))
    assert [plan.facts[0].sent_count for plan in (free, bound)] == [3, 1]
    assert free.notes == ()
    assert str(bound).endswith(
        "\nWith max_live=1 the slowest stage takes 1.38 of their mean, with max_live=3 it would take 1.03, if "
        "only computing counts."
    )
    assert f"{bound.bottleneck:.2f} {free.bottleneck:.2f}" == "1.38 1.03"


def test_a_slow_link_moves_a_cut_to_where_less_crosses():
    """The middle of this model is wide, and its third quarter narrow."""
    widths = [64, 64, 64, 2, 64]
    params = [jnp.ones((a, b)) for a, b in itertools.pairwise(widths)]
    batch = jnp.ones((2, 64))
    fast = partition(plain, params, batch, stages=2)
    slow = partition(plain, params, batch, stages=2, link_gbit=1e-3)
    assert fast.facts[0].sent_bytes > slow.facts[0].sent_bytes == 2 * 2 * 4


def test_memory_bounds_a_stage():
    """An embedding costs memory and no time, so half of the layers beside it are too much."""

    def loss(params, batch):
        return plain(params["layers"], params["embedding"][batch])

    params = {"embedding": jnp.ones((1000, 4)), "layers": [jnp.eye(4)] * 6}
    batch = jnp.arange(256)
    first = partition(loss, params, batch, stages=2).facts[0]
    room = first.memory_bytes - 4 * batch.size * 4 * 4  # two layers, which keep an activation before and behind tanh
    fits = partition(loss, params, batch, stages=2, memory_bytes=room)
    assert fits.facts[0].memory_bytes <= room
    assert fits.facts[0].params < first.params
    check_plan(fits, loss, params, batch)
    with pytest.raises(UsageError, match="fits into"):
        partition(loss, params, batch, stages=2, memory_bytes=100.0)


@pytest.mark.slow
def test_measured_costs():
    """The number of turns of a loop with a condition isn't known from shapes, so it counts as one turn."""

    def turn(state):
        number, x = state
        return number + 1, (x * 3 + 1) % 1000

    def loss(params, batch):
        x = batch @ params[0]
        _, random = jax.lax.while_loop(lambda state: state[0] < 20_000, turn, (0, (1000 * x).astype(jnp.int32)))
        x += random / 1000
        for weight in params[1:]:
            x = jnp.tanh(x @ weight)
        return jnp.sum(x)

    arguments = [jnp.eye(64)] * 9, jnp.ones((64, 64)) / 64
    counted, measured = (partition(loss, *arguments, stages=2, cost=cost) for cost in ("flops", "measure"))
    assert counted.facts[0].params > measured.facts[0].params == 64 * 64
    assert measured.facts[0].compute_s > measured.facts[1].compute_s
    check_plan(measured, loss, *arguments)


def test_a_slow_memory_is_waited_for():
    """Adding elements takes few operations, but reads as much as a matrix product does."""

    def loss(params, batch):
        x = batch
        for bias in params["biases"]:
            x = x + bias[None]
        return jnp.sum(x @ params["weights"])

    params = {"biases": [jnp.ones(32)] * 16, "weights": jnp.ones((32, 32))}
    plans = [partition(loss, params, jnp.ones((32, 32)), stages=2, bytes_per_s=rate) for rate in (1e15, 1e10)]
    fast, slow = (len(plan.stages[0].pieces) for plan in plans)
    assert fast == 16 > slow  # the slow memory makes the additions take long, too
    check_plan(plans[1], loss, params, jnp.ones((32, 32)))


@pytest.mark.parametrize(
    ("loss", "arguments", "message"),
    [
        (plain, {"stages": 0}, "at least one"),
        (plain, {"stages": 20}, r"has 11 operations .*, too few for 20 stages\.$"),
        (
            jax.checkpoint(plain),
            {"stages": 2},
            r"has 1 operations .*, too few .* jax.checkpoint of .* 100 % .* around each layer",
        ),
        (plain, {"stages": 4, "max_live": 0}, r"are 0 positions .* \(max_live\), too few .* max_live=1 allows enough"),
        (
            lambda params, batch: jax.lax.pmean(plain(params, batch), "data"),
            {"stages": 2},
            "along the axis 'data', .* pip",
        ),
        (
            lambda params, batch: jax_passing.pmean(plain(params, batch), "d"),
            {"stages": 2},
            "along the axis 'd', as psum",
        ),
        (plain, {"stages": 2, "cost": "guess"}, "'guess'"),
        (plain, {"stages": 2, "link_gbit": 0.0}, "above 0"),
        (plain, {"stages": 2, "has_aux": True}, "has_aux=True the loss returned no tuple"),
        (lambda params, batch: (plain(params, batch), 1), {"stages": 2}, "pass has_aux=True"),
        (lambda params, batch: batch, {"stages": 2}, "real scalar"),
        (lambda params, batch: jnp.sum(params[0]), {"stages": 2}, "doesn't depend on both"),
    ],
)
def test_what_cant_be_cut(loss, arguments, message):
    with pytest.raises(UsageError, match=message):
        partition(loss, *PLAIN, **arguments)


def test_side_effects_are_refused_by_line():
    def loss(params, batch):
        jax.debug.print("x {}", batch)
        return plain(params, batch)

    with pytest.raises(UsageError, match=r"debug.* test_partition.py:\d+"):
        partition(loss, *PLAIN, stages=2)


@pytest.mark.parametrize("psum", [jax.lax.psum, jax_passing.psum])
def test_collectives_inside_of_the_loss_are_refused_by_axis_and_line(session, psum):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("m",))
    halves = jax.shard_map(
        lambda x, w: psum(x @ w, "m"), mesh=mesh, in_specs=(P(None, "m"), P("m")), out_specs=P(), check_vma=False
    )
    with pytest.raises(UsageError, match=r"psum over 'm', in a shard_map .*test_partition.py:\d+.* by param_specs"):
        partition(lambda params, batch: jnp.sum(halves(batch, params[0])), *PLAIN, stages=1)


def test_a_plan_says_that_a_checkpoint_isnt_cut():
    def loss(params, batch):
        return jnp.mean(jax.checkpoint(lambda x: plain(params[1:], x) * x)(batch @ params[0]))

    (note,) = partition(loss, *PLAIN, stages=2).notes
    assert re.match(r"jax.checkpoint \(test_partition.py:\d+\) is one operation, .* with \d\d % of the work: put", note)

"""`partition` of models as people write them, against `jax.value_and_grad` of the whole."""

import itertools
import re
from inspect import currentframe

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P
from support.docs.pages import blocks, page

import jax_passing
from jax_passing import partition
from jax_passing.errors import PartitionError


def agree(plan, loss, params, batch, has_aux=False):
    """Loss, aux and gradients of the stages are those of the whole."""
    ours = jax.jit(plan.value_and_grad)(params, batch)
    whole = jax.jit(jax.value_and_grad(loss, has_aux=has_aux))(params, batch)
    assert jax.tree.structure(ours) == jax.tree.structure(whole)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(whole[1]))
    for one, other in zip(jax.tree.leaves(ours[0]), jax.tree.leaves(whole[0]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    for one, other in zip(jax.tree.leaves(ours[1]), jax.tree.leaves(whole[1]), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * largest)


class Block(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x, train):
        y = nn.gelu(nn.Dense(2 * self.width)(nn.LayerNorm()(x)))
        y = nn.Dropout(0.1, deterministic=not train)(y)
        y = nn.BatchNorm(use_running_average=not train)(y)
        return x + nn.Dense(self.width)(y)


class Language(nn.Module):
    """Tied embedding, dropout, batch_stats."""

    @nn.compact
    def __call__(self, tokens, train=True):
        embed = nn.Embed(50, 16)
        x = embed(tokens)
        for layer in range(4):
            x = Block(16, name=f"block_{layer}")(x, train)
        return embed.attend(x)


@pytest.fixture(scope="module")
def language():
    model, tokens = Language(), jnp.arange(24).reshape(4, 6)
    variables = model.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, tokens)

    def loss(params, batch):
        state = {"params": params, "batch_stats": variables["batch_stats"]}
        logits, new = model.apply(state, batch["x"], rngs={"dropout": batch["key"]}, mutable=["batch_stats"])
        value = -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][..., None], -1))
        return value, {"batch_stats": new["batch_stats"], "twice": 2 * value, "labels": batch["y"] + 1}

    return loss, variables["params"], {"x": tokens, "y": tokens + 1, "key": jax.random.key(3)}


@pytest.mark.parametrize("stages", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 3, 4))])
def test_a_linen_model_with_tied_weights_dropout_and_batch_stats(language, stages):
    loss, params, batch = language
    plan = partition(loss, params, batch, stages=stages, has_aux=True)
    assert len(plan.stages) == stages
    agree(plan, loss, params, batch, has_aux=True)


def test_a_tied_embedding_is_with_both_stages(language):
    loss, params, batch = language
    plan = partition(loss, params, batch, stages=2, has_aux=True)
    held = plan.split(params)
    tied = "['Embed_0']['embedding']"
    assert all(tied in names for names in held)
    others = [set(names) - {tied} for names in held]
    assert not others[0] & others[1]
    merged = plan.merge([{name: leaf + 1 for name, leaf in one.items()} for one in held], params)
    for one, other in zip(jax.tree.leaves(merged), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(one, other + 1)


def test_an_nnx_model():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(4)])

        def __call__(self, x):
            for layer in self.layers:
                x = nnx.relu(layer(x))
            return x

    graph, params = nnx.split(Net(nnx.Rngs(0)))

    def loss(params, batch):
        return jnp.mean((nnx.merge(graph, params)(batch[0]) - batch[1]) ** 2)

    batch = (jax.random.normal(jax.random.key(1), (4, 8)), jnp.ones((4, 8)))
    agree(partition(loss, params, batch, stages=3), loss, params, batch)


def deep(layers=6, width=8):
    """Layers as a scan over stacked weights."""

    def loss(params, batch):
        def turn(x, layer):
            return jnp.tanh(x @ layer["w"] + layer["b"][None]), jnp.mean(x)

        x, means = jax.lax.scan(turn, batch, params)
        return jnp.sum(x**2), means

    keys = jax.random.split(jax.random.key(0))
    params = {"w": jax.random.normal(keys[0], (layers, width, width)), "b": jnp.zeros((layers, width))}
    return loss, params, jax.random.normal(keys[1], (4, width))


def test_a_scan_over_layers_is_cut_between_its_turns():
    loss, params, batch = deep()
    plan = partition(loss, params, batch, stages=3, has_aux=True)
    assert plan.bottleneck < 1.1
    for held, rows in zip(plan.split(params), ["0:2", "2:4", "4:6"], strict=True):
        assert held[f"['w'][{rows}]"].shape == (2, 8, 8)
    agree(plan, loss, params, batch, has_aux=True)
    held = [jax.tree.map(lambda leaf: leaf * 2, one) for one in plan.split(params)]
    np.testing.assert_array_equal(plan.merge(held, params)["w"], params["w"] * 2)


def test_what_only_aux_needs_has_no_gradient():
    """The norm's derivative at 0 is infinite: a gradient of zeros instead of none would make it NaN."""

    def loss(params, batch):
        h = batch @ params[0]
        h, norm = jax_passing.cut((h, jnp.sqrt(jnp.sum(h**2))))
        out = h @ params[1] + batch
        return jnp.sum(out**2), {"norm": norm + jnp.sum(out)}

    params = [jnp.zeros((4, 4)), jnp.eye(4)]
    plan = partition(loss, params, jnp.ones((2, 4)), stages=2, has_aux=True)
    assert plan.stages[0].needs_gradient_out.count(False) == 1
    agree(plan, loss, params, jnp.ones((2, 4)), has_aux=True)


def test_loops_without_a_derivative_that_nobody_asks_for():
    def loss(params, batch):
        x = batch @ params[0]
        halved = jax.lax.while_loop(lambda y: jnp.max(y) > 1, lambda y: y / 2, jax.lax.stop_gradient(x))
        return jnp.sum(jnp.tanh((x * halved) @ params[1]))

    params, batch = [jnp.eye(4) * 3, jnp.ones((4, 4))], jnp.ones((2, 4))
    agree(partition(loss, params, batch, stages=2), loss, params, batch)


def test_a_loop_over_a_sequence_stays_whole():
    def loss(params, batch):
        state, _ = jax.lax.scan(lambda h, x: (jnp.tanh(h @ params[0] + x), None), jnp.zeros((2, 4)), batch)
        return jnp.sum(state @ params[1])

    params, batch = [jnp.eye(4), jnp.ones((4, 4))], jnp.ones((5000, 2, 4))
    plan = partition(loss, params, batch, stages=2)
    assert len(plan._chain.compute_s) < 10
    agree(plan, loss, params, batch)


def test_stages_are_functions_that_jax_jits():
    plan = partition(plain, *PLAIN, stages=2)
    carried, held = [], plan.split(PLAIN[0])
    for stage, params in zip(plan.stages, held, strict=True):
        carried, outputs = jax.jit(stage)(params, carried, PLAIN[1])
    np.testing.assert_allclose(outputs[0], plain(*PLAIN), rtol=1e-6)


def test_shapes_suffice():
    loss, params, batch = deep(layers=48, width=64)
    shapes = jax.eval_shape(lambda: (params, batch))
    plan = partition(loss, *shapes, stages=6, has_aux=True)
    assert plan.bottleneck < 1.05
    assert sum(facts.params for facts in plan.facts) == 48 * (64 * 64 + 64)
    agree(plan, loss, params, batch, has_aux=True)


def plain(params, batch):
    x = batch
    for weight in params:
        x = jnp.tanh(x @ weight)
    return jnp.sum(x)


PLAIN = [jnp.eye(4)] * 5, jnp.ones((2, 4))


def test_marks_say_where_to_cut():
    def loss(params, batch):
        x = batch
        for layer, weight in enumerate(params):
            x = jnp.tanh(x @ weight)
            x = jax_passing.cut(x) if layer in (0, 3) else x
        return jnp.sum(x)

    plan = partition(loss, *PLAIN, stages=3)
    assert [facts.params // 16 for facts in plan.facts] == [1, 3, 1]
    agree(plan, loss, *PLAIN)
    assert partition(loss, *PLAIN, stages=2).facts[0].params // 16 in (1, 4)
    with pytest.raises(PartitionError, match="2 marks .* too few for 4 stages"):
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
    agree(plan, loss, *PLAIN)
    with pytest.raises(PartitionError, match="5 marks .* too few for 7 stages"):
        partition(loss, *PLAIN, stages=7)


def test_at_most_max_live_arrays_cross_a_cut():
    """In the middle of this model, where a cut would be best, three arrays are alive, before it one."""

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
        "\nWith max_live=1 the slowest stage takes 1.38 of their mean, with max_live=3 it would take 1.03: of "
        "computing alone."
    )
    assert f"{bound.bottleneck:.2f} {free.bottleneck:.2f}" == "1.38 1.03"


def test_a_slow_link_moves_a_cut_to_where_less_crosses():
    """The middle of this model is wide, its third quarter narrow."""
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
    room = first.memory_bytes - 4 * batch.size * 4 * 4  # two layers keep an activation before and behind tanh
    fits = partition(loss, params, batch, stages=2, memory_bytes=room)
    assert fits.facts[0].memory_bytes <= room
    assert fits.facts[0].params < first.params
    agree(fits, loss, params, batch)
    with pytest.raises(PartitionError, match="fits into"):
        partition(loss, params, batch, stages=2, memory_bytes=100.0)


def test_measured_costs():
    """Nobody can tell from shapes how many turns a loop with a condition has, so it counts as one."""

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
    agree(measured, loss, *arguments)


def test_a_plan_says_what_its_stages_are(language):
    loss, params, batch = language
    first, header, *rows = str(partition(loss, params, batch, stages=2, has_aux=True)).splitlines()
    assert first.startswith("2 stages, the slowest takes 1.0")
    assert header.split() == ["stage", "work", "FLOP", "parameters", "memory", "sends", "arrays", "begins", "at"]
    assert len({row.index("Language/") for row in rows}) == 1  # columns are aligned
    assert re.search(r"Language/Embed_0 \(test_plan.py:\d+\)$", rows[0])
    assert re.search(r"Language/block_\d\S* \(test_plan.py:\d+\)$", rows[1])


def test_operations_inside_of_jaxs_own_functions_have_the_line_of_their_call():
    def loss(params, batch):
        first = jnp.take(params[0], batch, axis=0)
        line = currentframe().f_lineno - 1
        lines.append(line)
        return jnp.sum(first @ params[1])

    lines = []
    plan = partition(loss, [jnp.ones((8, 4)), jnp.ones((4, 4))], jnp.arange(3), stages=1)
    assert plan.facts[0].place == f"(test_plan.py:{lines[0]})"


def test_a_slow_memory_is_waited_for():
    """Sums of elements are few operations, but read as much as a product does."""

    def loss(params, batch):
        x = batch
        for bias in params["biases"]:
            x = x + bias[None]
        return jnp.sum(x @ params["weights"])

    params = {"biases": [jnp.ones(32)] * 16, "weights": jnp.ones((32, 32))}
    plans = [partition(loss, params, jnp.ones((32, 32)), stages=2, bytes_per_s=rate) for rate in (1e15, 1e10)]
    fast, slow = (len(plan.stages[0].pieces) for plan in plans)
    assert fast == 16 > slow  # as long as the product takes by itself, or several sums before it beside it
    agree(plans[1], loss, params, jnp.ones((32, 32)))


def test_of_rows_that_several_stages_hold_the_first_ones_are_merged():
    """One scan goes over them forwards, another one backwards."""

    def loss(params, batch):
        for reverse in (False, True):
            batch, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch, params, reverse=reverse)
        return jnp.sum(batch)

    params, batch = jnp.stack([jnp.eye(4)] * 6), jnp.ones((2, 4))
    plan = partition(loss, params, batch, stages=5)
    assert [stage.pieces[0].rows for stage in plan.stages] == [(0, 1), (1, 4), (4, 6), (2, 5), (0, 2)]
    agree(plan, loss, params, batch)
    held = [{name: leaf * 0 + number for name, leaf in own.items()} for number, own in enumerate(plan.split(params))]
    np.testing.assert_array_equal(plan.merge(held, params)[:, 0, 0], [0, 1, 1, 1, 2, 2])


def test_a_plan_can_be_drawn(language):
    loss, params, batch = language
    figure = partition(loss, params, batch, stages=3, has_aux=True).plot()
    assert [len(axes.lines) for axes in figure.axes] == [3, 3]  # the curve, and two cuts


@pytest.mark.parametrize(
    ("loss", "arguments", "message"),
    [
        (plain, {"stages": 0}, "at least one"),
        (plain, {"stages": 20}, r"the loss has 11, too few for 20 stages\.$"),
        (jax.checkpoint(plain), {"stages": 2}, r"has 1, too few .* jax.checkpoint of .* 100 % .* around each layer"),
        (plain, {"stages": 4, "max_live": 0}, r"\(max_live\) cross a cut in 0 places, .* max_live=1 allows enough"),
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
    with pytest.raises(PartitionError, match=message):
        partition(loss, *PLAIN, **arguments)


def test_side_effects_are_refused_by_line():
    def loss(params, batch):
        jax.debug.print("x {}", batch)
        return plain(params, batch)

    with pytest.raises(PartitionError, match=r"debug.* test_plan.py:\d+"):
        partition(loss, *PLAIN, stages=2)


@pytest.mark.parametrize("psum", [jax.lax.psum, jax_passing.psum])
def test_collectives_inside_of_the_loss_are_refused_by_axis_and_line(session, psum):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("m",))
    halves = jax.shard_map(
        lambda x, w: psum(x @ w, "m"), mesh=mesh, in_specs=(P(None, "m"), P("m")), out_specs=P(), check_vma=False
    )
    with pytest.raises(PartitionError, match=r"psum over 'm', in a shard_map .*test_plan.py:\d+.* by param_specs"):
        partition(lambda params, batch: jnp.sum(halves(batch, params[0])), *PLAIN, stages=1)


def test_a_plan_says_that_a_checkpoint_isnt_cut():
    def loss(params, batch):
        return jnp.mean(jax.checkpoint(lambda x: plain(params[1:], x) * x)(batch @ params[0]))

    (note,) = partition(loss, *PLAIN, stages=2).notes
    assert re.match(r"jax.checkpoint \(test_plan.py:\d+\) is one operation, .* with \d\d % of the work: put", note)


def test_parameters_and_batches_of_another_model():
    """A stage would compute something else with them, silently."""
    plan = partition(plain, *PLAIN, stages=2)
    params, batch = PLAIN
    with pytest.raises(PartitionError, match="parameters are of another structure"):
        plan.split(params[:2])
    with pytest.raises(PartitionError, match=r"\[3\]: float32\[5, 4\] instead of float32\[4, 4\]"):
        plan.split([*params[:3], jnp.ones((5, 4)), params[4]])
    with pytest.raises(PartitionError, match=r"batch differ .* in the only one: float32\[3, 4\]"):
        plan.value_and_grad(params, jnp.ones((3, 4)))
    with pytest.raises(PartitionError, match="float16"):
        plan.value_and_grad(params, batch.astype(jnp.float16))
    loss, stacked, batch = deep()
    plan = partition(loss, stacked, batch, stages=2, has_aux=True)
    with pytest.raises(PartitionError, match=r"float32\[8, 8, 8\] instead of float32\[6, 8, 8\]"):
        plan.value_and_grad({**stacked, "w": jnp.ones((8, 8, 8))}, batch)


@pytest.mark.parametrize("number", [0, 2])
def test_the_examples_of_the_docs(capsys, number):
    program, printed = blocks(page("pipelines.md"))[number:][:2]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(compile(program.text, "train.py", "exec"), {})
    assert capsys.readouterr().out == printed.text

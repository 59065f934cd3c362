"""Plans of models as people write them, against `jax.value_and_grad` of the whole loss."""

import re
from inspect import currentframe

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_passing
from jax_passing import partition
from jax_passing.errors import UsageError
from support.jax.plans import PLAIN, check_plan, plain
from support.pages import blocks, page


class Block(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x, train):
        y = nn.gelu(nn.Dense(2 * self.width)(nn.LayerNorm()(x)))
        y = nn.Dropout(0.1, deterministic=not train)(y)
        y = nn.BatchNorm(use_running_average=not train)(y)
        return x + nn.Dense(self.width)(y)


class Language(nn.Module):
    """A model with a tied embedding, dropout and batch_stats."""

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


@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_a_linen_model_with_tied_weights_dropout_and_batch_stats(language, stages):
    loss, params, batch = language
    plan = partition(loss, params, batch, stages=stages, has_aux=True)
    assert len(plan.stages) == stages
    check_plan(plan, loss, params, batch, has_aux=True)


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
    check_plan(partition(loss, params, batch, stages=3), loss, params, batch)


def deep(layers=6, width=8):
    """Returns a loss with layers as a scan over stacked weights, and its arguments."""

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
    check_plan(plan, loss, params, batch, has_aux=True)
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
    check_plan(plan, loss, params, jnp.ones((2, 4)), has_aux=True)


def test_loops_without_a_derivative_that_nobody_asks_for():
    def loss(params, batch):
        x = batch @ params[0]
        halved = jax.lax.while_loop(lambda y: jnp.max(y) > 1, lambda y: y / 2, jax.lax.stop_gradient(x))
        return jnp.sum(jnp.tanh((x * halved) @ params[1]))

    params, batch = [jnp.eye(4) * 3, jnp.ones((4, 4))], jnp.ones((2, 4))
    check_plan(partition(loss, params, batch, stages=2), loss, params, batch)


def test_a_loop_over_a_sequence_stays_whole():
    def loss(params, batch):
        state, _ = jax.lax.scan(lambda h, x: (jnp.tanh(h @ params[0] + x), None), jnp.zeros((2, 4)), batch)
        return jnp.sum(state @ params[1])

    params, batch = [jnp.eye(4), jnp.ones((4, 4))], jnp.ones((5000, 2, 4))
    plan = partition(loss, params, batch, stages=2)
    assert len(plan._chain.compute_s) < 10
    check_plan(plan, loss, params, batch)


def test_stages_are_functions_that_jax_jits():
    plan = partition(plain, *PLAIN, stages=2)
    carried, held = [], plan.split(PLAIN[0])
    for stage, params in zip(plan.stages, held, strict=True):
        carried, outputs = jax.jit(stage)(params, carried, PLAIN[1])
    np.testing.assert_allclose(outputs[0], plain(*PLAIN), rtol=1e-6)


@pytest.mark.slow
def test_shapes_suffice():
    loss, params, batch = deep(layers=24, width=64)
    shapes = jax.eval_shape(lambda: (params, batch))
    plan = partition(loss, *shapes, stages=6, has_aux=True)
    assert plan.bottleneck < 1.05
    assert sum(facts.params for facts in plan.facts) == 24 * (64 * 64 + 64)
    check_plan(plan, loss, params, batch, has_aux=True)


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
    assert plan.facts[0].location == f"(test_plan.py:{lines[0]})"


def test_merge_takes_the_first_stages_rows_where_several_stages_hold_them():
    """One scan goes over the rows forwards, another one backwards."""

    def loss(params, batch):
        for reverse in (False, True):
            batch, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch, params, reverse=reverse)
        return jnp.sum(batch)

    params, batch = jnp.stack([jnp.eye(4)] * 6), jnp.ones((2, 4))
    plan = partition(loss, params, batch, stages=5)
    assert [stage.pieces[0].rows for stage in plan.stages] == [(0, 1), (1, 4), (4, 6), (2, 5), (0, 2)]
    check_plan(plan, loss, params, batch)
    held = [{name: leaf * 0 + number for name, leaf in own.items()} for number, own in enumerate(plan.split(params))]
    np.testing.assert_array_equal(plan.merge(held, params)[:, 0, 0], [0, 1, 1, 1, 2, 2])


def test_a_plan_can_be_drawn(language):
    loss, params, batch = language
    figure = partition(loss, params, batch, stages=3, has_aux=True).plot()
    assert [len(axes.lines) for axes in figure.axes] == [3, 3]  # the curve, and two cuts


def test_parameters_and_batches_of_another_model():
    """Stages would silently compute something else with them."""
    plan = partition(plain, *PLAIN, stages=2)
    params, batch = PLAIN
    with pytest.raises(UsageError, match="parameters have another structure"):
        plan.split(params[:2])
    with pytest.raises(UsageError, match=r"\[3\]: float32\[5, 4\] instead of float32\[4, 4\]"):
        plan.split([*params[:3], jnp.ones((5, 4)), params[4]])
    with pytest.raises(UsageError, match=r"batch differ .* in the only one: float32\[3, 4\]"):
        plan.value_and_grad(params, jnp.ones((3, 4)))
    with pytest.raises(UsageError, match="float16"):
        plan.value_and_grad(params, batch.astype(jnp.float16))
    loss, stacked, batch = deep()
    plan = partition(loss, stacked, batch, stages=2, has_aux=True)
    with pytest.raises(UsageError, match=r"float32\[8, 8, 8\] instead of float32\[6, 8, 8\]"):
        plan.value_and_grad({**stacked, "w": jnp.ones((8, 8, 8))}, batch)


@pytest.mark.parametrize("number", [0, 2])
def test_the_examples_of_the_docs(capsys, number):
    program, printed = blocks(page("pipelines.md"))[number:][:2]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(compile(program.text, "train.py", "exec"), {})
    assert capsys.readouterr().out == printed.text

"""Frozen parameters: low-rank adapters on a small GPT-2, against the program that trains it on one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jax_passing import partition, pipeline
from jax_passing.errors import UsageError
from jax_passing.partitioning.cost import cost_of_jaxpr

ROWS, TOKENS, WIDTH, HEADS, VOCABULARY, RANK, LAYERS = 2, 6, 16, 2, 32, 2, 2


def normed(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def attention(layer, x):
    """Queries and values are adapted: W + A B (Hu et al., LoRA, ICLR 2022)."""

    def projected(name):
        y = x @ layer[name]
        if (adapter := layer["lora"].get(name)) is not None:
            y = y + x @ adapter["a"] @ adapter["b"]
        return y.reshape(*x.shape[:2], HEADS, WIDTH // HEADS)

    scores = jnp.einsum("bthd,bshd->bhts", projected("query"), projected("key")) / (WIDTH // HEADS) ** 0.5
    causal = jnp.tril(jnp.ones((TOKENS, TOKENS), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), -1)
    return jnp.einsum("bhts,bshd->bthd", weights, projected("value")).reshape(x.shape) @ layer["out"]


def loss(params, batch):
    tokens = batch["tokens"]
    table = params["embed"].astype(jnp.float32) * params["scale"]  # eight bits an element
    x = table[tokens[:, :-1]]
    for layer in params["layers"]:
        x = x + attention(layer, normed(x))
        x = x + jax.nn.gelu(normed(x) @ layer["up"]) @ layer["down"]
    logits = normed(x) @ table.T
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1))


def is_frozen(params):
    """All but the adapters, as a mask of optax."""
    return jax.tree.map_with_path(lambda path, _: "lora" not in jax.tree_util.keystr(path), params)


@functools.cache
def arguments(count):
    random = np.random.default_rng(2)

    def normal(*shape):
        return (random.normal(size=shape) / 4).astype(np.float32)

    def layer():
        lora = {name: {"a": normal(WIDTH, RANK), "b": normal(RANK, WIDTH)} for name in ("query", "value")}
        square = {name: normal(WIDTH, WIDTH) for name in ("query", "key", "value", "out")}
        return {**square, "up": normal(WIDTH, 4 * WIDTH), "down": normal(4 * WIDTH, WIDTH), "lora": lora}

    embed = random.integers(-127, 128, (VOCABULARY, WIDTH)).astype(np.int8)
    params = {"embed": embed, "scale": np.float32(0.01), "layers": [layer() for _ in range(LAYERS)]}
    return params, {"tokens": random.integers(0, VOCABULARY, (count * ROWS, TOKENS + 1))}


def made(stages, schedule="1f1b", width=1, microbatches=4):
    params, batch = arguments(width * microbatches)
    plan = partition(loss, params, {"tokens": batch["tokens"][:ROWS]}, stages=stages, frozen=is_frozen)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[: stages * width]).reshape(stages, width), ("stage", "data"))
    return pipeline(plan, mesh, microbatches=microbatches, schedule=schedule), params, batch


def alone(params, batch, optimizer, steps):
    """Returns what a program on one device makes of the adapters: their gradients at first, and then the adapters."""
    mask = is_frozen(params)
    trained = jax.tree.map(lambda leaf, frozen: None if frozen else leaf, params, mask)

    def of_trained(trained):
        whole = jax.tree.map(
            lambda own, leaf: leaf if own is None else own, trained, params, is_leaf=lambda x: x is None
        )
        return loss(whole, batch)

    step = jax.jit(jax.value_and_grad(of_trained))
    value, gradients = step(trained)
    state = optimizer.init(trained)
    for _ in range(steps):
        updates, state = optimizer.update(step(trained)[1], state, trained)
        trained = optax.apply_updates(trained, updates)
    return value, gradients, trained


@jax.numpy_dtype_promotion("standard")  # for optax
@pytest.mark.parametrize(
    ("stages", "schedule", "width"), [pytest.param(2, "1f1b", 2, marks=pytest.mark.slow), (3, "zb-h1", 1)]
)
def test_adapters_are_trained_as_on_one_device(stages, schedule, width):
    step, params, batch = made(stages, schedule, width)
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2, weight_decay=0.1))
    value, gradients, trained = alone(params, batch, optimizer, 3)
    placed = step.place(params)
    found, found_gradients = step(placed, batch)
    np.testing.assert_allclose(found, value, rtol=1e-6)
    assert jax.tree.structure(found_gradients) == jax.tree.structure(gradients)  # None for what is frozen
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradients))
    for one, other in zip(jax.tree.leaves(found_gradients), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=4e-6 * largest)  # 2^-24, a few dozen times
    by_stage = step.by_stage(optimizer)
    state, moved = by_stage.init(placed), placed
    held = sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.size > 1)
    assert held == 2 * sum(leaf.size for leaf in jax.tree.leaves(gradients))  # Adam's two moments, of adapters only
    for _ in range(3):
        updates, state = by_stage.update(step(moved, batch)[1], state, moved)
        moved = optax.apply_updates(moved, updates)
    pairs = zip(jax.tree.leaves(moved), jax.tree.leaves(placed), jax.tree.leaves(is_frozen(params)), strict=True)
    assert all((one is other) == frozen for one, other, frozen in pairs)
    ours = jax.tree.map(lambda leaf, frozen: None if frozen else leaf, moved, is_frozen(params))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(trained), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=3e-5)  # three steps of Adam at 0.01


def test_frozen_parameters_cost_neither_a_backward_pass_nor_memory_nor_a_sum():
    params, batch = arguments(1)
    plans = {
        name: partition(loss, jax.tree.map(jnp.float32, params), batch, stages=2, frozen=mask)
        for name, mask in {"all": None, "adapters": is_frozen, "none": True}.items()
    }
    trained = {"all": lambda name: True, "adapters": lambda name: "lora" in name, "none": lambda name: False}
    for name, plan in plans.items():
        leaves, tree = jax.tree.flatten(jax.tree.map(jnp.float32, params))
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        own = [number for number, path in enumerate(paths) if trained[name](path)]

        def of_own(arrays, own=own, leaves=leaves, tree=tree):
            whole = dict(enumerate(leaves)) | dict(zip(own, arrays, strict=True))
            return loss(tree.unflatten(whole.values()), batch)

        function = jax.value_and_grad(of_own) if own else of_own
        counted = cost_of_jaxpr(jax.make_jaxpr(function)([leaves[number] for number in own])).flops
        assert sum(facts.flops for facts in plan.facts) == pytest.approx(counted, rel=0.05)
        for stage in plan.stages:
            assert {piece.name for piece in stage.pieces if piece.is_trained} == {
                piece.name for piece in stage.pieces if trained[name](piece.name)
            }
    memory = {name: sum(facts.memory_bytes for facts in plan.facts) for name, plan in plans.items()}
    assert memory["none"] < memory["adapters"] < memory["all"]
    step, _, _ = made(2)
    kept = {runner.passes.stage.pieces[index].name for runner in step._runners for index in runner.passes.trained}
    assert len(kept) == 4 * LAYERS


def test_stages_before_the_first_trained_parameter_have_no_backward_pass():
    params = [jnp.full((4, 4), 0.1 * number) for number in range(1, 7)]
    mask = [True, True, True, True, False, True]

    def loss(params, batch):
        for weight in params:
            batch = jnp.tanh(batch @ weight)
        return jnp.mean(batch)

    batch = jnp.linspace(-1, 1, 32).reshape(8, 4)
    plan = partition(loss, params, batch[:2], stages=3, frozen=mask)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:3]).reshape(3, 1), ("stage", "data"))
    step = pipeline(plan, mesh, microbatches=4)
    first = step._runners[0].passes
    assert first.whole.operations == ()
    assert len(first.kept) == 0
    assert not any(first.stage.needs_gradient_out)
    _, gradients = step(params, batch)
    right = jax.grad(lambda one: loss([*params[:4], one, params[5]], batch))(params[4])
    np.testing.assert_allclose(gradients[4], right, atol=1e-7)
    assert [leaf is None for leaf in gradients] == mask
    _, same = plan.value_and_grad(params, batch[:2])
    assert [leaf is None for leaf in same] == mask


def test_masks_may_have_none_where_the_parameters_have_it():
    params, batch = {"a": jnp.ones(3), "bias": None, "c": jnp.ones(3)}, jnp.ones(3)
    plan = partition(
        lambda params, batch: jnp.sum(params["a"] * params["c"] * batch),
        params,
        batch,
        stages=1,
        frozen=lambda params: jax.tree.map_with_path(lambda path, _: "a" in jax.tree_util.keystr(path), params),
    )
    assert plan.frozen == (True, False)
    _, gradients = plan.value_and_grad(params, batch)
    assert gradients["a"] is gradients["bias"] is None
    with pytest.raises(UsageError, match="frozen has None in it"):
        partition(
            lambda params, batch: jnp.sum(params["a"] * batch), params, batch, stages=1, frozen={**params, "a": None}
        )


def test_masks_that_dont_fit():
    params, batch = {"a": jnp.ones(3), "b": jnp.ones(3)}, jnp.ones(3)

    def loss(params, batch):
        return jnp.sum(params["a"] * params["b"] * batch)

    with pytest.raises(UsageError, match=r"frozen has 'frozen' in it.*lambda label: label"):
        partition(loss, params, batch, stages=1, frozen={"a": "frozen", "b": "train"})
    with pytest.raises(UsageError, match="frozen isn't a prefix"):
        partition(loss, params, batch, stages=1, frozen={"a": True})

"""Stages of random programs, cut anywhere, against JAX's own gradients of the whole."""

import itertools
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_passing.partitioning.scans import unroll
from jax_passing.partitioning.stages import Slicer, put_together
from jax_passing.partitioning.traced_model import trace

N = 3  # all values are N x N


@jax.custom_vjp
def halved_gradient(x):
    return x * 1.5


halved_gradient.defvjp(lambda x: (x * 1.5, None), lambda _, g: (g / 2,))

UNARY = [
    jnp.tanh,
    jnp.transpose,
    jax.nn.relu,
    jax.jit(jax.nn.gelu),
    jax.checkpoint(lambda x: jnp.sin(x) * x),
    halved_gradient,
    lambda x: jax.lax.cond(x[0, 0] > 0, jnp.cos, jnp.sin, x),
    lambda x: x * x.astype(jnp.int32).astype(jnp.float32),
    lambda x: x.at[0].set(1.0),
]
BINARY = [jnp.matmul, jnp.add, jnp.multiply, jax.jit(lambda a, b: a @ b + a), lambda a, b: jnp.concatenate([a, b])[:N]]


def random_loss(seed, layers):
    """`loss(params, batch)` of lists; several outputs, the first of which is the loss."""

    def scanned(x, params, random):
        reverse, leaves = random.random() < 0.5, random.random() < 0.5

        def turn(carry, row):
            on = jnp.tanh(carry @ row + 0.1 * carry)
            return on, on.sum() if leaves else None

        return jax.lax.scan(turn, x, params[-1], reverse=reverse)

    def loss(params, batch):
        random = Random(seed)
        values = [*params[:-1], *batch]
        left = []
        for _ in range(layers):
            kind = random.random()
            if kind < 0.2:
                x, rows = scanned(random.choice(values), params, random)
                left += [] if rows is None else [rows]
            elif kind < 0.6:
                x = random.choice(UNARY)(random.choice(values))
            else:
                x = random.choice(BINARY)(random.choice(values), random.choice(values))
            values.append(x / (1 + jnp.abs(x)))
            if random.random() < 0.1:
                left.append(values[-1])
        return [sum(jnp.sum(value) for value in values[-3:]), *left]

    return loss


def arguments(seed):
    keys = jax.random.split(jax.random.key(seed), 6)
    params = [*(jax.random.normal(key, (N, N)) for key in keys[:3]), jax.random.normal(keys[3], (5, N, N))]
    return params, [jax.random.normal(key, (N, N)) for key in keys[4:]]


def run(stages, names, params, batch):
    carried, everything = [], []
    for stage in stages:
        held = {piece.name: piece.of(params[piece.leaf]) for piece in stage.pieces}
        assert {piece.name.partition("[")[0] for piece in stage.pieces} <= set(names)
        carried, outputs = stage(held, carried, batch)
        assert [one.shape for one in carried] == [shape.shape for shape in stage.carried_out]
        everything += zip(stage.outputs, outputs, strict=True)
    assert carried == []
    return put_together(everything)


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_fast")
@pytest.mark.parametrize("first", range(0, 52, 13))
def test_stages_of_random_programs_compute_what_the_whole_does(first):
    several = 0
    for seed in range(first, first + 13):
        loss = random_loss(seed, layers=8)
        params, batch = arguments(seed)
        names = [f"p{leaf}" for leaf in range(len(params))]
        slicer = Slicer(unroll(trace(loss, params, batch)), names)
        random = Random(seed)
        n = len(slicer.chain)
        if n == 0:
            continue
        cuts = sorted(random.sample(range(1, n), min(n - 1, random.randint(1, 4)))) if n > 1 else []
        ends = [0, *cuts, n]
        stages = [slicer.stage(*pair) for pair in itertools.pairwise(ends)]
        several += len(stages) > 1

        def ours(params, stages=stages, names=names, batch=batch):
            outputs = run(stages, names, params, batch)
            return outputs[0], outputs[1:]

        def whole(params, loss=loss, batch=batch):
            outputs = loss(params, batch)
            return outputs[0], outputs[1:]

        (value, left), gradients = jax.jit(jax.value_and_grad(ours, has_aux=True))(params)
        (expected, expected_left), expected_gradients = jax.jit(jax.value_and_grad(whole, has_aux=True))(params)
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        for one, other in zip(left, expected_left, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        largest = max(float(jnp.abs(gradient).max()) for gradient in expected_gradients)
        for one, other in zip(gradients, expected_gradients, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * max(largest, 1e-3), err_msg=str(seed))
    assert several > 8  # otherwise the seeds would show little


def test_a_stage_holds_the_rows_of_its_own_layers_only():
    def loss(params, batch):
        return [jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch[0], params[0])[0].sum()]

    params, batch = [jnp.ones((6, N, N))], [jnp.ones((N, N))]
    slicer = Slicer(unroll(trace(loss, params, batch)), ["w"])
    stages = [slicer.stage(0, 2), slicer.stage(2, 6), slicer.stage(6, len(slicer.chain))]
    assert [[piece.name for piece in stage.pieces] for stage in stages] == [["w[0:2]"], ["w[2:6]"], []]
    # One scan for the turns of a stage, not one for each.
    text = str(jax.make_jaxpr(stages[1])({"w[2:6]": params[0][2:6]}, [jnp.ones((N, N))], batch))
    assert text.count("= scan[") == 1
    assert "length=4" in text


def test_what_depends_on_the_batch_only_isnt_carried():
    """The last stage uses the labels, and the stage that draws splits the key."""

    def loss(params, batch):
        x, labels, key = batch
        for weight in params:
            key, drawn = jax.random.split(key)
            x = jnp.tanh(x @ weight) * jax.random.normal(drawn, x.shape)
        return [jnp.sum((x - jax.nn.one_hot(labels, N)) ** 2)]

    params = [jnp.ones((N, N))] * 3
    batch = [jnp.ones((N, N)), jnp.arange(N), jax.random.key(1)]
    slicer = Slicer(unroll(trace(loss, params, batch)), list("abc"))
    muls = [number for number, operation in enumerate(slicer.chain) if operation.eqn.primitive.name == "dot_general"]
    ends = [0, *muls[1:], len(slicer.chain)]
    stages = [slicer.stage(*pair) for pair in itertools.pairwise(ends)]
    assert [stage.batch for stage in stages] == [(0, 2), (2,), (1, 2)]
    assert [len(stage.carried_in) for stage in stages] == [0, 1, 1]
    np.testing.assert_array_equal(run(stages, "abc", params, batch)[0], loss(params, batch)[0])

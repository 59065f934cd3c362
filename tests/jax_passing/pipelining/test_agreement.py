"""The facts that processes compare before a pipeline's first step, here of pipelines of one process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jax_passing import cut, partition
from jax_passing.host.processes import differences
from jax_passing.pipelining.agreement import facts_of
from jax_passing.pipelining.passes import Passes
from jax_passing.pipelining.schedules import gpipe, one_f_one_b

N = 4


def loss_of(factor=1.0, backward=1.0, cut_behind=None, activation=jax.nn.relu):
    """Returns a new loss with a constant that it closes over, custom derivatives, a checkpoint and a scan."""
    table = factor * np.ones((1, N), np.float32)

    @jax.custom_vjp
    def scaled(x):
        return x * table

    scaled.defvjp(lambda x: (x * table, None), lambda _, gradient: (gradient * backward,))

    def loss(params, batch):
        x = jax.checkpoint(lambda x, weight: activation(x @ weight))(batch["x"], params[0])
        for number, weight in enumerate(params[1:]):
            x = cut(scaled(x)) if number == cut_behind else scaled(x)
            x, _ = jax.lax.scan(lambda x, _, weight=weight: (jnp.tanh(x @ weight), None), x, length=2)
        return jnp.mean(x * jax.random.uniform(batch["key"], x.shape))

    return loss


def facts(rows=2, specs=P(), schedule=None, axes=("stage", "data"), devices=(0, 1, 2, 3), **of_loss):
    batch = {"x": np.ones((rows, N), np.float32), "key": jax.random.key(0)}
    params = [np.ones((N, N), np.float32)] * 4
    plan = partition(loss_of(**of_loss), params, batch, stages=2)
    passes = [Passes(one, list(one.held(plan.params_shapes).values()), plan.batch_shapes) for one in plan.stages]
    mesh = jax.sharding.Mesh(np.array(jax.devices())[list(devices)].reshape(2, 2), axes)
    return facts_of(plan, passes, mesh, axes, schedule or gpipe(2, 2), [specs] * len(params))


@pytest.fixture(scope="module")
def usual():
    return facts()


def test_the_facts_of_a_loss_that_is_traced_again_are_the_same(usual):
    assert differences({0: usual, 1: facts()}) == []


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"factor": 2.0}, ["stage 0"]),  # the bits of a constant
        ({"backward": 2.0}, ["stage 0"]),  # only of a derivative
        ({"activation": jax.nn.relu6}, ["stage 0"]),
        ({"cut_behind": 0}, ["stage 0", "stage 1"]),
        ({"rows": 3}, ["batch", "stage 0", "stage 1"]),
        ({"specs": P("model")}, ["param_specs"]),
        ({"schedule": gpipe(2, 3)}, ["microbatches", "schedule"]),
        ({"schedule": one_f_one_b(2, 2)}, ["schedule"]),
        ({"devices": (1, 0, 2, 3)}, ["mesh"]),
        ({"axes": ("stage", "batch")}, ["mesh", "stage_axis and data_axis"]),
    ],
)
def test_differing_facts_are_named(usual, change, names):
    assert [one.partition(" (")[0] for one in differences({0: usual, 1: facts(**change)})] == names


def test_processes_with_the_same_facts_are_named_together():
    two, three = {"stages": ("2", "2")}, {"stages": ("3", "3"), "stage 2": ("abcdefghij", "x")}
    assert differences({2: two, 0: two, 1: three}) == [
        "stages (processes 0, 2: 2; process 1: 3)",
        "stage 2 (processes 0, 2: nothing; process 1: x (abcdefgh))",
    ]

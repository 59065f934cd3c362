"""A pipeline on a mesh over the processes of `jax.distributed`, whose gradients are summed by a switch.

How the mesh's stages and places along the data axis lie on the processes is the argument: "stages": each process has a
stage; "data": each has all stages; "both": half of them have a stage. Every process knows the whole batch.
"""

import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.dynamic_scale import DynamicScale

import jax_passing

MICROBATCHES, ROWS, N = 4, 3, 16


def loss(params: dict[str, jax.Array], batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
    """A tied parameter and a stack of layers that both stages have, one that nobody uses, a random key, aux of several
    dtypes."""
    x = jnp.tanh(batch["x"] @ params["tied"] @ params["first"])
    x, _ = jax.lax.scan(lambda x, weight: (jnp.tanh(x @ weight), None), x, params["stack"])
    x = jnp.tanh(x @ params["last"])
    x = x * jax.random.bernoulli(batch["key"], 0.9, x.shape)
    value = jnp.mean((x @ params["tied"].T - batch["y"]) ** 2)
    return value, {"mean": jnp.mean(x), "most": jnp.argmax(x[0]), "key": batch["key"]}


def arguments(width: int) -> tuple[dict, dict]:
    random = np.random.default_rng(7)

    def normal(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    params = {
        "first": normal(N, N) / 3,
        "last": normal(N, N) / 3,
        "stack": normal(4, N, N) / 3,
        "tied": normal(N, N) / 3,
        "unused": jnp.ones(3, jnp.float16),  # a jax.Array, as Flax's init returns
    }
    count = width * MICROBATCHES
    keys = jax.random.split(jax.random.key(3), count)
    return params, {"x": normal(count, ROWS, N), "y": normal(count, ROWS, N), "key": keys}


def expected(params: dict, batch: dict, count: int) -> tuple:
    """Loss, aux and gradients: means over microbatches, of what isn't of floating point the last."""
    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    results = [step(params, jax.tree.map(lambda leaf, number=number: leaf[number], batch)) for number in range(count)]
    (value, aux), gradients = jax.tree.map(lambda *leaves: np.asarray(sum(leaves) / count), *_without_keys(results))
    return (value, aux["mean"]), results[-1][0][1], gradients


def _without_keys(results: list) -> list:
    return [((value, {"mean": aux["mean"]}), gradients) for (value, aux), gradients in results]


def main(layout: str) -> None:
    rank, count = int(os.environ["JAX_PASSING_RANK"]), int(os.environ["JAX_PASSING_WORLD_SIZE"])
    jax.distributed.initialize(os.environ["COORDINATOR"], num_processes=count, process_id=rank)
    devices = np.array(jax.devices()).reshape(count, -1)  # [process, device]
    match layout:
        case "stages":
            rows = devices
        case "data":
            rows = devices.reshape(count, 2, -1).swapaxes(0, 1).reshape(2, -1)
        case "both":
            rows = devices.reshape(2, -1)
    mesh = jax.sharding.Mesh(rows, ("stage", "data"))
    job = jax_passing.stage_job(mesh)
    mine = [
        number for number in range(rows.shape[1]) if any(device.process_index == rank for device in rows[:, number])
    ]
    params, batch = arguments(rows.shape[1])
    (value, mean), last, gradients = expected(params, batch, rows.shape[1] * MICROBATCHES)
    norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gradients)))
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradients))
    own = {
        name: leaf.reshape(rows.shape[1], MICROBATCHES, *leaf.shape[1:])[np.array(mine)].reshape(-1, *leaf.shape[1:])
        for name, leaf in batch.items()
    }
    shapes = {name: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for name, leaf in batch.items()}
    plan = jax_passing.partition(loss, params, shapes, stages=2, has_aux=True)
    assert all(any(piece.rows for piece in stage.pieces) for stage in plan.stages), "both have layers of the stack"
    with jax_passing.init(job=f"{layout}-{job.stage}", rank=job.rank, world_size=job.world_size):
        for schedule in ("1f1b", "zb-h1"):
            step = jax_passing.pipeline(plan, mesh, microbatches=MICROBATCHES, schedule=schedule)
            placed = step.place(params)
            no_noise = optax.add_noise(0.0, 0.0, 0)  # its state has a random key
            plateau = optax.contrib.reduce_on_plateau()  # it takes the loss
            optimizer = step.by_stage(optax.chain(no_noise, optax.sgd(0.2), plateau), max_norm=norm / 2)
            state = optimizer.init(placed)
            for _ in range(3):  # of what JAX runs for the second time, it remembers where its arrays are
                (found, aux), found_gradients = step(placed, own)
            np.testing.assert_allclose([found, aux["mean"]], [value, mean], rtol=1e-5)
            assert int(aux["most"]) == int(last["most"])
            assert aux["key"] == last["key"]
            losses, of_each = step.evaluate(placed, own)
            assert losses.shape == (rows.shape[1] * MICROBATCHES,)
            np.testing.assert_allclose([np.mean(losses), np.mean(of_each["mean"])], [value, mean], rtol=1e-5)
            assert int(np.asarray(of_each["most"])[-1]) == int(last["most"])
            np.testing.assert_allclose(step.global_norm(found_gradients), norm, rtol=1e-5)
            scale, is_finite, _, scaled_gradients = step.scaled(DynamicScale(), placed, own)
            assert (is_finite, int(scale.fin_steps)) == (True, 1)
            for gradient, same in zip(*map(jax.tree.leaves, (found_gradients, scaled_gradients)), strict=True):
                for one, other in zip(gradient.addressable_shards, same.addressable_shards, strict=True):
                    np.testing.assert_array_equal(one.data, other.data)  # the scale is a power of two
            assert (found_gradients["unused"].dtype, scaled_gradients["unused"].dtype) == (jnp.float16, jnp.float32)
            broken = {**own, "y": own["y"] * (np.inf if rank == count - 1 else 1)}  # seen by the last stage alone
            assert not step.scaled(scale, placed, broken)[1]
            updates, _ = optimizer.update(scaled_gradients, state, value=found)
            moved = optax.apply_updates(placed, updates)
            pairs = zip(*map(jax.tree.leaves, (found_gradients, gradients, moved, placed)), strict=True)
            shards = 0
            for gradient, right, after, before in pairs:
                assert (gradient.sharding, after.dtype) == (before.sharding, before.dtype)
                for one, new, old in zip(*(x.addressable_shards for x in (gradient, after, before)), strict=True):
                    np.testing.assert_allclose(one.data, right[one.index], rtol=0, atol=1e-6 * largest)
                    np.testing.assert_allclose(new.data, old.data - 0.1 * one.data, rtol=1e-5, atol=1e-6)
                    shards += 1
            print(f"{schedule}: {shards} shards are right")
        try:
            step.scaled(DynamicScale(scale=jnp.float32(2.0 ** (10 + rank))), placed, own)
        except jax_passing.errors.UsageError as error:
            print(f"refused: {error}")
        try:
            step(params, own)
        except jax_passing.errors.UsageError as error:
            print(f"refused: {error}")
    try:
        step(placed, own)
    except jax_passing.errors.UsageError as error:
        print(f"refused: {error}")
    axis = "data" if layout == "data" else None  # where all have the same stages, one job of all is right without it
    with jax_passing.init(job=f"{layout}-all", rank=rank, world_size=count, axis_name=axis):
        try:
            jax_passing.pipeline(plan, mesh, microbatches=MICROBATCHES)
        except jax_passing.errors.UsageError as error:
            print(f"refused: {error}")


main(sys.argv[1])

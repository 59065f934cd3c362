"""Parameters that are initialized and restored by a process for each stage: none holds all of them.

Prints how much memory each of that took at most, and what it keeps of it: stage_by_stage.py FOLDER. With the number of
processes as a further argument it only saves, in one process, what these restore.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

import jax_passing

WIDTH, LAYERS_OF_STAGE, MIB = 1536, 8, 1 << 20  # 9 MiB a layer


def loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
    for layer in params:
        x = jnp.tanh(x @ layer)
    return jnp.mean(x)


def init(key: jax.Array, layers: int) -> list[jax.Array]:
    return [jax.random.normal(own, (WIDTH, WIDTH)) * WIDTH**-0.5 for own in jax.random.split(key, layers)]


def memory(name: str) -> int:
    """Returns VmRSS, what this process has in memory, or VmHWM, what it had at most; bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def peak(do: Callable[[], Any]) -> tuple[Any, float]:
    """Returns what `do` does, and how many more MiB than before were in memory meanwhile."""
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    result = jax.block_until_ready(do())
    return result, (memory("VmHWM") - before) / MIB


def own_bytes(params: Any) -> int:
    return sum(piece.data.nbytes for leaf in params for piece in leaf.addressable_shards)


def same(params: Any, others: Any) -> bool:
    pairs = zip(params, others, strict=True)
    return all(
        np.array_equal(one.data, other.data)
        for leaf, same_leaf in pairs
        for one, other in zip(leaf.addressable_shards, same_leaf.addressable_shards, strict=True)
    )


def save(folder: Path, count: int) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(
            folder / "params", jax.jit(init, static_argnums=1)(jax.random.key(0), LAYERS_OF_STAGE * count)
        )


def main(folder: Path) -> None:
    rank, count = int(os.environ["JAX_PASSING_RANK"]), int(os.environ["JAX_PASSING_WORLD_SIZE"])
    jax.distributed.initialize(os.environ["COORDINATOR"], num_processes=count, process_id=rank)
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(count, 1), ("stage", "data"))
    layers = LAYERS_OF_STAGE * count
    shapes = jax.eval_shape(lambda key: init(key, layers), jax.random.key(0))
    plan = jax_passing.partition(loss, shapes, jax.ShapeDtypeStruct((4, WIDTH), jnp.float32), stages=count)
    step = jax_passing.pipeline(plan, mesh, microbatches=count)
    small = jax.jit(lambda key: jax.random.normal(key, (2, 2)))(jax.random.key(0))  # what JAX needs once isn't counted
    jax.block_until_ready(small)
    params, took = peak(lambda: step.init(lambda key: init(key, layers), jax.random.key(0)))
    print(f"init: {took:.0f} MiB for {own_bytes(params) / MIB:.0f} of {9 * layers}")
    target = step.abstract_params
    args = ocp.args.PyTreeRestore(item=target, restore_args=ocp.checkpoint_utils.construct_restore_args(target))
    with ocp.PyTreeCheckpointer() as checkpointer:
        restored, took = peak(lambda: step.place(checkpointer.restore(folder / "params", args=args)))
    print(f"restore: {took:.0f} MiB for {own_bytes(restored) / MIB:.0f} of {9 * layers}")
    assert same(params, restored)
    whole = step.place(jax.jit(init, static_argnums=1)(jax.random.key(0), layers))
    assert same(restored, whole), "the bits are those of the whole init"


if len(sys.argv) > 2:
    save(Path(sys.argv[1]).absolute(), int(sys.argv[2]))
else:
    main(Path(sys.argv[1]).absolute())

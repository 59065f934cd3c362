"""A host of the randomised search: draws the programs of the seeds that it is told, and runs them with JAX."""

import linecache
import os
import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing
from support.jax.lockstep import attempt, serve
from support.jax.search_programs import Program, draw
from support.jax.search_statements import MODULUS

SLEEP_S = 0.02
DEADLINE_S = 15.0  # a hang shows as an error of this session, which isn't allowed


def local(x: Any, how: str, here: bool) -> Any:
    """The same value, on some hosts computed in a way of their own."""
    if not here:
        return x
    flat = jnp.ravel(x)
    if how == "eye":
        flat = flat @ jnp.eye(flat.size, dtype=x.dtype)
    elif how == "mask":
        padded = jnp.pad(flat, (0, 3), constant_values=5)
        flat = jnp.where(jnp.arange(padded.size) < flat.size, padded, 0)[: flat.size]
    elif how == "batch":  # one more example, of zeros
        flat = jnp.stack([flat, jnp.zeros_like(flat)]).sum(0).astype(x.dtype)
    elif how == "dead":
        jnp.linalg.norm(flat.astype(jnp.float32)) + jnp.sin(flat.astype(jnp.float32)).sum()
        flat = jnp.sort(jnp.sort(flat))[jnp.argsort(jnp.argsort(flat))]
    elif how == "scan":
        flat = jax.lax.scan(lambda c, i: (c + i, None), flat - 3, jnp.arange(3, dtype=x.dtype))[0]
    elif how == "late":
        slept = jax.pure_callback(late, jax.ShapeDtypeStruct(flat.shape, flat.dtype), flat)
        flat = jnp.where(slept == flat, flat, -1)  # as varying as it was
    return flat.reshape(x.shape)


def late(x: np.ndarray) -> np.ndarray:
    time.sleep(SLEEP_S)
    return x


def bent(x: Any, how: str, here: bool) -> Any:
    """Gives x another shape or dtype."""
    if not here:
        return x
    if how == "shape":
        return jnp.concatenate([jnp.ravel(x), jnp.ravel(x)])
    return x.astype(jnp.int32 if x.dtype == jnp.float32 else jnp.float32)


def dict_of(rank: int, tree: dict[str, Any]) -> dict[str, Any]:
    """The same, put together in an order of each host's own."""
    keys = sorted(tree, key=lambda key: hash((rank, len(key), key[-1:])))
    return {key: tree[key] for key in keys}


def names(rank: int, check_vma: bool) -> dict[str, Any]:
    """Lists the names that the source of a program may use."""

    def scan(body: Any, start: Any, steps: int) -> Any:
        return jax.lax.scan(body, start, jnp.arange(steps, dtype=start.dtype))

    def beside(x: Any, total: Any) -> Any:
        """`x`; XLA can't know that the total is never so large."""
        return x + jnp.where(jnp.ravel(total)[0] > 1_000_000, 1, 0).astype(x.dtype)

    return {
        "jax": jax,
        "jnp": jnp,
        "rank": rank,
        "psum": jax_passing.psum,
        "pvary": jax_passing.pvary,
        "pmax": lambda x, axis: jax_passing.pmax(x, axis),
        "pmin": lambda x, axis: jax_passing.pmin(x, axis),
        "vary": lambda x: jax_passing.pvary(x, "d") if check_vma else x,
        "small": lambda x: jnp.mod(x, jnp.asarray(MODULUS, x.dtype)),
        "leaves": lambda tree: (
            [tree[key] for key in sorted(tree)]
            if isinstance(tree, dict) and "layer" not in tree
            else jax.tree.leaves(tree)
        ),
        "local": local,
        "bent": bent,
        "fit": lambda x, like: jnp.ravel(x)[: like.size].reshape(like.shape).astype(like.dtype),
        "not_summed": lambda tree: jax.tree.map(lambda x: jax.lax.pmax(x, "d"), tree),
        "beside": beside,
        "dict_of": dict_of,
        "scan": scan,
        "first": lambda x: jnp.ravel(x)[0],
    }


def compiled(program: Program, rank: int, devices: Sequence[Any]) -> Any:
    """The jitted step on a mesh of these devices."""
    scope = names(rank, program.check_vma)
    linecache.cache[program.file] = (len(program.source), None, program.source.splitlines(True), program.file)
    exec(compile(program.source, program.file, "exec"), scope)
    specs = tuple(P("d") if variable.varies else P() for variable in program.inputs)
    mesh = jax.sharding.Mesh(np.array(devices), ("d",))
    mapped = jax.shard_map(scope["step"], mesh=mesh, in_specs=specs, out_specs=P("d"), check_vma=program.check_vma)
    return jax.jit(mapped)


def run(program: Program, rank: int) -> list[list[list[Any]]]:
    """Results of each execution on each mesh, in the program's order."""
    devices = jax.local_devices()
    meshes = [[devices[i] for i in numbers] for numbers in program.devices_that_run]
    steps = [compiled(program, rank, mesh) for mesh in meshes]
    pending = []
    for execution in range(program.executions):
        for number, step in enumerate(steps):
            count = len(meshes[number])
            own = slice(rank * count, (rank + 1) * count)
            rows = program.data(execution, number)
            inputs = [
                value[own] if variable.varies else value[0]
                for variable, value in zip(program.inputs, rows, strict=True)
            ]
            pending.append(step(*inputs)[0])
    order = program.orders[rank]
    return [[np.asarray(results[order.index(i)]).tolist() for i in range(len(order))] for results in pending]


def main() -> None:
    at = SimpleNamespace(rank=int(os.environ["JAX_PASSING_RANK"]), hosts=int(os.environ["JAX_PASSING_WORLD_SIZE"]))

    def handle(question: dict[str, Any]) -> dict[str, Any]:
        current = jax_passing.session.current()
        if question["do"] == "init":
            if current is not None:
                current.shutdown()
            jax_passing.init(axis_name="d", deadline_s=DEADLINE_S)
            return {}
        program = draw(question["seed"], at.hosts, jax.local_device_count())
        answer = attempt(lambda: run(program, at.rank))
        current = jax_passing.session.current()
        answer["failed"] = current is None or current.error is not None
        if question["seed"] % 50 == 0:
            jax.clear_caches()  # of programs that never come again
        return answer

    jax.local_device_count()
    serve(handle)


if __name__ == "__main__":
    sys.exit(main())

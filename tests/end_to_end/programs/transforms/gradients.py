"""Runs the cases of tests/support/jax/gradients, as it is told: gradients.py reference | local | global.

`reference` is one process with all devices and jax.lax, `local` a host with a mesh of its own devices, `global` one of
the processes of jax.distributed.
"""

import os
import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import linear_call
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from support.jax.gradients import CASES, World
from support.jax.lockstep import attempt, serve

SEED = 20


def lax_operations(reference: str) -> SimpleNamespace:
    lax = jax.lax
    names = ("psum", "pmean", "axis_size", "axis_index")

    def pvary(tree: Any, axes: Any) -> Any:
        axes = axes if isinstance(axes, tuple) else (axes,)
        if set(axes) <= set(jax.sharding.get_abstract_mesh().manual_axes) and jax._src.config._check_vma.value:
            return lax.pcast(tree, axes, to="varying")
        if reference == "nothing":
            return tree
        # Each value is its own; what comes back is summed.
        if reference == "reverse":
            cast = jax.custom_vjp(lambda tree: tree)
            cast.defvjp(lambda tree: (tree, None), lambda _, ct: (lax.psum(ct, axes),))
            return cast(tree)
        return linear_call(lambda _, tree: tree, lambda _, ct: lax.psum(ct, axes), (), tree)

    return SimpleNamespace(pvary=pvary, **{name: getattr(lax, name) for name in names})


def world(kind: str, devices: int, reference: str) -> World:
    """`devices`: of all hosts."""
    random = np.random.default_rng(SEED)
    params: Any = {"w": random.normal(size=(3, 4)), "b": random.normal(size=4)}
    params = jax.tree.map(lambda x: x.astype(np.float32), params)
    x, y = (random.normal(size=(devices, 5, width)).astype(np.float32) for width in (3, 4))
    if kind == "reference":
        return World(jax.devices(), devices // jax_devices_per_host(), lax_operations(reference), params, x, y)
    import jax_passing

    if kind == "local":
        rank, count = jax_passing.session.current().rank, jax.local_device_count()
        mine = slice(rank * count, (rank + 1) * count)
        return World(jax.local_devices(), 1, jax_passing, params, x[mine], y[mine])
    rows = NamedSharding(jax.sharding.Mesh(np.array(jax.devices()), ("d",)), P("d"))
    x, y = (jax.make_array_from_callback(z.shape, rows, lambda index, z=z: z[index]) for z in (x, y))
    return World(jax.devices(), jax.process_count(), jax_passing, params, x, y)


def jax_devices_per_host() -> int:
    return int(os.environ["DEVICES_PER_HOST"])


def equal_value(leaf: Any) -> np.ndarray:
    """Returns one of the copies of what is equal on all devices."""
    return np.asarray(leaf.addressable_data(0) if isinstance(leaf, jax.Array) else leaf)


def own_rows(leaf: Any) -> np.ndarray:
    """Returns this process's rows, in order, of what has a row for each device."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
        return np.asarray(leaf)
    parts = {shard.index[0].start or 0: np.asarray(shard.data) for shard in leaf.addressable_shards}
    return np.concatenate([parts[start] for start in sorted(parts)])


def main(kind: str) -> None:
    if kind == "global":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        count, rank = int(os.environ["HOST_COUNT"]), int(os.environ["HOST_RANK"])
        jax.distributed.initialize(os.environ["COORDINATOR"], num_processes=count, process_id=rank)

    def run(name: str, devices: int) -> list[list[list[float]]]:
        case = CASES[name]
        equal, rows = case.run(world(kind, devices, case.reference))
        values = [[equal_value(x) for x in jax.tree.leaves(equal)], [own_rows(x) for x in jax.tree.leaves(rows)]]
        return [[x.astype(np.float64).ravel().tolist() for x in part] for part in values]

    def handle(question: dict[str, Any]) -> dict[str, Any]:
        if question["do"] == "init":
            import jax_passing

            current = jax_passing.session.current()
            if current is not None:
                current.shutdown()
            jax_passing.init(deadline_s=question["deadline_s"], axis_name="d" if kind == "local" else None)
            return {}
        answer = attempt(lambda: run(question["case"], question["devices"]))
        if kind != "reference":
            import jax_passing

            current = jax_passing.session.current()
            answer["failed"] = current is None or current.error is not None
        return answer

    jnp.zeros(()).block_until_ready()  # the backend exists before the first question's limit runs
    serve(handle)


main(sys.argv[1])

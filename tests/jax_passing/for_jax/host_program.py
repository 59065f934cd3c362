"""A process of jax.distributed whose collectives go over a switch; it takes one step at a time, as it is told.

host_program.py late | early: the program calls `use_for_jax`, or the variables are set before it begins.
"""

import os
import sys
from typing import Any

import numpy as np

SEED = 24


def jit_sum(elements: int, dtype: str = "float32", of: str = "all") -> list[float]:
    """Sums rows of devices by annotations alone: of all, in one order or another, or of this process's."""
    devices = {
        "all": jax.devices(),
        "all, in another order": jax.devices()[::-1],
        "own": jax.local_devices(),
    }[of]
    mesh = jax.sharding.Mesh(np.array(devices), ("d",))
    count = len(devices)
    x = np.random.default_rng(SEED).integers(-8, 8, (count, elements)).astype(dtype)
    rows = jax.make_array_from_callback(x.shape, NamedSharding(mesh, P("d")), lambda index: x[index])
    found = jax.jit(lambda x: x.sum(0), out_shardings=NamedSharding(mesh, P()))(rows)
    assert np.array_equal(np.asarray(found), x.sum(0)), "a wrong sum"
    return [float(value) for value in np.asarray(found)[:4]]


def beside(steps: int) -> list[float]:
    """Sums by `jax_passing.psum` and by XLA in one program."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
    rows = NamedSharding(mesh, P("d"))
    x = np.arange(jax.device_count(), dtype=np.float32)
    array = jax.make_array_from_callback(x.shape, rows, lambda index: x[index])

    def both(x: jax.Array) -> jax.Array:
        return jax_passing.psum(x, "d") + 10 * jax.lax.psum(x, "d") + jax.lax.pmax(x, "d")

    program = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=P("d"), out_specs=P()))
    return [float(np.asarray(program(array))[0]) for _ in range(steps)]


def init(**arguments: Any) -> list[Any]:
    session = jax_passing.init(**arguments)
    return [session.rank, session.world_size, session is jax_passing.session.current()]


def error() -> str | None:
    session = jax_passing.session.current()
    assert session is not None
    return None if session.error is None else type(session.error).__name__


def shutdown() -> None:
    session = jax_passing.session.current()
    assert session is not None
    session.shutdown()


STEPS = {step.__name__: step for step in (jit_sum, beside, init, error, shutdown)}

if __name__ == "__main__":
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    import jax_passing
    from support.jax.lockstep import attempt, serve

    if sys.argv[1] == "late":
        jax_passing.use_for_jax()
    jax.distributed.initialize(os.environ["COORDINATOR"], int(os.environ["HOST_COUNT"]), int(os.environ["HOST_RANK"]))

    def handle(question: dict[str, Any]) -> dict[str, Any]:
        arguments = question.get(f"of {os.environ['HOST_RANK']}", question.get("arguments", {}))
        return attempt(lambda: STEPS[question["do"]](**arguments))

    serve(handle)

"""Hosts hold different values of what their program takes for equal, or not: unequal.py WAY:CHANGE ..."""

import os
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.errors import ProgramMismatchError, translate

PARAMS: Any = {"layer": {"w": np.ones((40, 7), np.float32), "b": np.zeros(7, np.float16)}, "scale": np.float64(3)}
STEPS = 3
if coordinator := os.environ.get("COORDINATOR"):
    world = [int(os.environ[f"JAX_PASSING_{name}"]) for name in ("WORLD_SIZE", "RANK")]
    jax.distributed.initialize(coordinator, *world)
jax.config.update("jax_enable_x64", True)
AXES = () if coordinator else ("d",)  # that go on over the hosts from a mesh of one
MESH = jax.sharding.Mesh(jax.devices(), ("d",))


def loss(params: Any, x: jax.Array) -> jax.Array:
    hidden = jnp.tanh(x @ params["layer"]["w"].T) @ params["layer"]["w"] + params["layer"]["b"].astype(np.float32)
    return jnp.mean(hidden**2) * params["scale"].astype(np.float32)


def sgd(params: Any, x: jax.Array) -> Any:
    value, gradients = jax_passing.overlap(loss, "d")(params, x)
    return jax.tree.map(lambda p, g: p - g * np.array(0.1, p.dtype), params, gradients), value


def mapped(step: Any, **options: Any) -> Any:
    return jax.jit(jax.shard_map(step, mesh=MESH, in_specs=(P(), P("d")), out_specs=P(), **options))


def in_scan(params: Any, x: jax.Array) -> Any:
    return jax.lax.scan(lambda params, _: sgd(params, x), params, length=STEPS)


def gradient_around_a_scan(params: Any, x: jax.Array) -> Any:
    def total(params: Any) -> jax.Array:
        def one(carry: jax.Array, _: None) -> Any:
            return carry + loss(jax_passing.pvary(params, "d"), x), None

        start = jax.lax.pcast(jnp.float32(0), "d", to="varying")
        return jax.lax.scan(one, start, length=STEPS)[0]

    value, gradients = jax.value_and_grad(total)(params)
    return gradients, jax_passing.pmean(value, "d")


def rematerialised(params: Any, x: jax.Array) -> Any:
    inner = jax.checkpoint(lambda params, x: loss(jax_passing.pvary(params, "d"), x))
    value, gradients = jax.value_and_grad(inner)(params, x)
    return gradients, jax_passing.pmean(value, "d")


WAYS = {
    "shard_map": mapped(sgd),
    "unchecked": mapped(sgd, check_vma=False),
    "scan": mapped(in_scan, check_vma=False),
    "around scan": mapped(gradient_around_a_scan),
    "checkpoint": mapped(rematerialised),
    "vmap of d": jax.jit(jax.vmap(sgd, axis_name="d", in_axes=(None, 0), out_axes=None)),
    "pmap": lambda params, x: jax.pmap(sgd, axis_name="d", in_axes=(None, 0), out_axes=None)(
        params, x.reshape(jax.local_device_count(), -1, 7)
    ),
    "own devices": lambda params, x: jax.pmap(sgd, axis_name="d", out_axes=None)(
        on_devices(params), x.reshape(jax.local_device_count(), -1, 7)
    ),
    "without jit": jax.shard_map(
        sgd,
        mesh=MESH,
        in_specs=(P(), P("d")),
        out_specs=P(),
        check_vma=False,
    ),
}


def on_devices(params: Any) -> Any:
    """Puts the parameters on the first device, and those that no host has changed on the others."""
    others = [PARAMS] * (jax.local_device_count() - 1)
    return jax.tree.map(lambda *leaves: np.stack(leaves), params, *others)


def rows(way: str) -> np.ndarray:
    x = np.linspace(0, 1, 8 * 7, dtype=np.float32).reshape(8, 7)
    return x[:, None] if way == "vmap of d" else x


def over_processes(params: Any, x: np.ndarray) -> Any:
    """Has each process say what its devices hold of arrays that go over all of them."""

    def array(value: Any, spec: P) -> jax.Array:
        sharding = jax.sharding.NamedSharding(MESH, spec)
        return jax.make_array_from_callback(np.shape(value), sharding, lambda index: np.asarray(value)[index])

    return jax.tree.map(lambda leaf: array(leaf, P()), params), array(np.resize(x, (2 * jax.device_count(), 7)), P("d"))


def heard(way: str, change: str) -> str:
    """Runs two steps, and returns what came of them."""
    try:
        with translate(), jax_passing.init(axis_name=AXES, job=f"{way} {change}") as session:
            params = changed(session.rank, session.world_size - 1, change)
            given = (params, rows(way))
            if jax.process_count() > 1:
                given = over_processes(*given)
            for _ in range(2):
                jax.block_until_ready(WAYS[way](*given))
            return f"equal, after {session.stats()['sums_completed']} sums"
    except ProgramMismatchError as error:
        return f"ProgramMismatchError: {error}"


def changed(rank: int, who: int, change: str) -> Any:
    params = jax.tree.map(np.array, PARAMS)
    if rank == who and change == "values":
        params["scale"] = np.float64(np.nextafter(3, 4))
        params["layer"]["w"][2, 2] = 2
    return params


def main() -> None:
    for case in sys.argv[1:]:
        way, change = case.split(":")
        print(f"{case}: {heard(way, change)}", flush=True)


if __name__ == "__main__":
    main()

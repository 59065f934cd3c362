"""Hosts that go wrong, with JAX's own collectives: different.py KIND. Each tells what it raised, and lives on."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import jax
import jax._src.distributed
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from over_mesh import placed

import jax_passing
from jax_passing import _native

Collective = Callable[[jax.Array, str], jax.Array]


def gather_and_add(x: jax.Array, axis: str) -> jax.Array:
    return lax.all_gather(x, axis, tiled=True).sum(axis=0, keepdims=True)


def over(mesh: Mesh, array: np.ndarray, *collectives: Collective, axis: str = "d") -> np.ndarray:
    """Calls one after the other, each with the result of the one before."""
    value = placed(mesh, array, mesh.axis_names)
    spec = P(mesh.axis_names)
    for one in collectives:
        mapped = jax.shard_map(partial(one, axis=axis), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        value = jax.jit(mapped)(value)
    return np.asarray(value.addressable_data(0))


def psum(x: jax.Array, axis: str) -> jax.Array:
    return lax.psum(x, axis)


def pmax(x: jax.Array, axis: str) -> jax.Array:
    return lax.pmax(x, axis)


def ring(x: jax.Array, axis: str) -> jax.Array:
    size = jax.device_count()
    return lax.ppermute(x, axis, [(i, (i + 1) % size) for i in range(size)])


def grid() -> Mesh:
    return Mesh(np.reshape(jax.devices(), (-1, 2)), ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def run(kind: str, odd: bool) -> object:
    mesh = Mesh(jax.devices(), ("d",))
    ones = np.ones((jax.device_count(), 8), np.float32)
    many = np.ones((jax.device_count(), 1 << 20), np.float32)  # hosts exchange them
    step = partial(over, mesh, ones)
    step(psum)  # all hosts have met
    print("met", flush=True)
    match kind:
        case "operation":
            return step(pmax if odd else psum)
        case "kind":
            return step(gather_and_add if odd else psum)
        case "ring":
            return step(ring if odd else psum)
        case "dtype":
            return over(mesh, ones.astype(np.int32) if odd else ones, psum)
        case "exchange":
            return over(mesh, many.astype(np.int32) if odd else many, gather_and_add)
        case "exchange or sum":
            return over(mesh, many, psum if odd else gather_and_add)
        case "killed in an exchange":
            if odd:
                threading.Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()
            while True:
                over(mesh, many, gather_and_add)
        case "order":
            return step(*((psum, pmax) if odd else (pmax, psum)))
        case "more":
            for _ in range(3 if odd else 2):
                value = step(psum)
            return value if odd else jax.block_until_ready(value)
        case "unawaited":
            again = jax.jit(jax.shard_map(partial(pmax, axis="d"), mesh=mesh, in_specs=P("d"), out_specs=P("d")))
            value = placed(mesh, ones, mesh.axis_names)
            for _ in range(100):
                value = again(value)
            return np.asarray(value.addressable_data(0))
        case "other axis":
            return over(grid(), ones, psum, axis="a" if odd else "b")
        case "alike" | "alike rings" | "alike, first":
            one, first = (ring if kind == "alike rings" else psum), kind.endswith("first")
            for number in range(3):
                if odd and number == (0 if first else 1):  # a metric of the gradient's shape
                    step(lambda x, axis: one(2 * x, axis))
                step(one)
            return None
        case "killed" | "endless":
            for number in range(10**9):
                if odd and kind == "killed" and number == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
                step(psum)
                if number == 5:
                    print("goes on", flush=True)
            return None
        case "slow":
            if odd:
                time.sleep(float(sys.argv[2]))
            return step(pmax)
        case "late communicator":
            if odd:
                time.sleep(float(sys.argv[2]))
            return over(grid(), ones, psum, axis="a")
        case "part and all":
            some = mesh if jax.process_index() == 2 else Mesh(jax.devices()[:2], ("d",))
            return over(some, ones[: some.size], psum)
        case "unequal":
            value = over(mesh, many, psum, ring, gather_and_add)
            jax_passing.init()  # for functions of ours
            return value
        case "empty":
            return over(mesh, np.ones((jax.device_count(), 0, 3), np.float32), psum, ring, gather_and_add).shape
        case "many":
            order = np.random.default_rng(0)
            for _ in range(int(sys.argv[2])):
                # Another order of devices is another group to XLA, with communicators of its own.
                shuffled = Mesh(order.permutation(np.asarray(jax.devices())), ("d",))
                np.testing.assert_array_equal(over(shuffled, ones, psum), ones[:1] * jax.device_count())
            return "all right"
        case "too large":
            whole = jax.make_array_from_callback(
                (jax.device_count(), 2**31), placed(mesh, ones, "d").sharding, lambda _: np.ones((1, 2**31), np.int8)
            )
            mapped = jax.shard_map(partial(pmax, axis="d"), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
            return jax.block_until_ready(jax.jit(mapped, donate_argnums=0)(whole)).shape
    raise ValueError(kind)


def leave(rank: int, hosts: int) -> None:
    """Ends without jax.distributed's barrier, at which a dead host would be missed. Host 0 has the coordinator, without
    which JAX ends the others: it goes last."""
    client = jax._src.distributed.global_state.client
    if rank != 0:
        client.key_value_set(f"told/{rank}", "")
    else:
        until = time.monotonic() + 15
        for other in range(1, hosts):
            with suppress(Exception):
                client.blocking_key_value_get(f"told/{other}", max(1, int(1000 * (until - time.monotonic()))))
        time.sleep(1)
    os._exit(0)


def main() -> None:
    kind, rank, hosts = sys.argv[1], int(os.environ["HOST_RANK"]), int(os.environ["HOST_COUNT"])
    if "NO_CLIQUES" in os.environ:  # as with a jaxlib that is made in another way
        _native.watch_xla = lambda: "a test says so"
    if kind == "unequal":
        os.environ.pop("XLA_FLAGS", None)
        jax.config.update("jax_num_cpu_devices", 1 + rank)
    if kind == "unawaited":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # XLA makes a thread for each core, or device
    # A host that dies is ours to tell of, before JAX's coordinator ends the others.
    jax.distributed.initialize(
        os.environ["COORDINATOR"], num_processes=hosts, process_id=rank, heartbeat_timeout_seconds=60
    )
    began = time.monotonic()
    try:
        print(f"value {run(kind, odd=rank == 1)} after {time.monotonic() - began:.1f} s", flush=True)
    except Exception as error:
        text = " ".join(str(error).split())
        print(f"raised {type(error).__name__} after {time.monotonic() - began:.1f} s: {text}", flush=True)
        assert float(jnp.ones(3).sum()) == 3  # this process can still compute
        print("lives on", flush=True)
    leave(rank, hosts)


main()

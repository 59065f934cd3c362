"""Sums ten times; then the last rank does as it is told, and the others go on. Says what they get.

recorded.py sleeps | differs | runs | dies | raises | brings_nan | keeps_a_device
"""

import os
import sys
import time

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import jax_passing

HOW = sys.argv[1]
late_devices: list[int] = []
MESH = jax.sharding.Mesh(jax.local_devices(), ("d",))


def jitted(function):
    return jax.jit(jax.shard_map(function, mesh=MESH, in_specs=P("d"), out_specs=P(), check_vma=False))


def come(b, device):
    if device in late_devices:
        time.sleep(20)
    return b


def step(tree):
    if HOW == "keeps_a_device":
        tree = {**tree, "b": jax.pure_callback(come, tree["b"], tree["b"], jax.lax.axis_index("d"))}
    return jax_passing.psum(tree, "d")


def other(tree):
    return jax_passing.psum(tree["w"], "d")


def misbehave(how, tree):
    if how == "sleeps":
        print("sleeps", flush=True)
        time.sleep(600)
    if how == "dies":
        time.sleep(0.5)
        os._exit(1)
    if how == "raises":
        time.sleep(0.5)  # until the others are in their next sum
        raise KeyError("a mistake")
    if how == "differs":
        jitted(other)(tree).block_until_ready()
    if how == "keeps_a_device":
        late_devices.append(1)
    if how == "brings_nan":
        tree["w"] = tree["w"].at[7].set(jnp.nan)


def main(how: str) -> None:
    tree = {"b": jnp.ones(8), "w": jnp.ones(4000)}
    compiled = jitted(step)
    try:
        with jax_passing.init(axis_name="d", check_nans=how == "brings_nan") as session:
            for i in range(10**9):
                if i == 10:
                    print(f"has summed as process {os.getpid()}", flush=True)
                    if session.rank == session.world_size - 1:
                        misbehave(how, tree)
                jax.block_until_ready(compiled(tree))
    except jax_passing.errors.PassingError as error:
        print(f"raised {type(error).__name__}: {error}", flush=True)


main(HOW)

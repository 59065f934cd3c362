"""Rank 0 says "at MOMENT", the argument, and is interrupted there; rank 1 gets as far as it needs."""

import ctypes
import signal
import sys
import time

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import jax_passing

moment = sys.argv[1]
if moment == "joining":
    print("at joining", flush=True)
session = jax_passing.init(axis_name="d")
mesh = jax.sharding.Mesh(jax.local_devices()[:1], ("d",))
total = jax.jit(
    jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
)
total(jnp.ones(4)).block_until_ready()


def slow(x):
    for step in range(6000):
        x = jnp.sin(x) * step + jnp.cos(x * step)
    return x


def deaf():
    """Never returns. Unlike most calls of the system, this isn't interrupted by a signal."""
    python = ctypes.CDLL(None)  # without Python's lock
    python.PyThread_allocate_lock.restype = ctypes.c_void_p
    lock = ctypes.c_void_p(python.PyThread_allocate_lock())
    for _ in range(2):
        python.PyThread_acquire_lock(lock, 1)


if session.rank == 1:
    while session.error is None:
        time.sleep(0.05)
    raise session.error
if moment == "compiling":
    lowered = jax.jit(slow).lower(jnp.ones(4))
if moment == "handled":
    heard = []
    signal.signal(signal.SIGINT, lambda *_: heard.append(1))
print("at", moment, flush=True)
if moment == "compiling":
    lowered.compile()
    print("too late")
elif moment == "summing":
    total(jnp.ones(4)).block_until_ready()
elif moment == "summing later":  # dispatched, and waited for
    x = jnp.ones(1 << 20)
    for _ in range(10):
        x = total(x) / 2
    x.block_until_ready()
elif moment == "deaf":
    deaf()
elif moment == "handled":
    while not heard:
        time.sleep(0.05)
    time.sleep(1)  # in which nobody calls that unheard
    print("heard, and summed", total(jnp.ones(4))[0])
# Else it waits for rank 1 as Python ends.

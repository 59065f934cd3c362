"""What this process has dispatched to JAX, as far as a session has to wait for it."""

import time

import jax
import numpy as np


def wait_for_executions(timeout_s: float) -> bool:
    """Waits until what this thread dispatched to local CPU devices is over; False if it isn't after `timeout_s`.

    The CPU runs the executions that a thread dispatches one after the other: those on several devices in one line,
    those on a single one in another. So one more of each kind ends last. It must cost more than JAX's limit for
    running at once, out of turn.
    """
    devices = jax.local_devices(backend="cpu")
    ones = np.ones((len(devices), 64, 64), np.float32)
    across = jax.NamedSharding(jax.sharding.Mesh(np.array(devices), ("d",)), jax.sharding.PartitionSpec("d"))
    work = jax.jit(lambda x: x @ x)
    last = [work(jax.device_put(ones, place)) for place in (across, *devices)]
    until = time.monotonic() + timeout_s
    while not all(array.is_ready() for array in last) and time.monotonic() < until:
        time.sleep(0.002)
    return all(array.is_ready() for array in last)

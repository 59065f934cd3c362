"""A session waits here for the executions that this process has dispatched to JAX."""

import time
from collections.abc import Callable
from contextlib import suppress

import jax
import numpy as np

from jax_passing._compat import process
from jax_passing.errors import JoinError
from jax_passing.host import scope

POLL_S = 0.005  # between two looks at an array that isn't ready


@jax.jit
def _work(x: jax.Array) -> jax.Array:
    return x @ x


def wait_for_executions(timeout_s: float) -> bool:
    """Waits until what this thread dispatched to local devices is over; False if it isn't after `timeout_s`.

    A device runs executions one after the other. The CPU runs those that a thread dispatches so: those on several
    devices in one line, those on a single one in another. So one more of each kind ends last. It must cost more than
    JAX's limit for running at once, out of turn.
    """
    last = []
    for platform in dict.fromkeys(("cpu", jax.default_backend())):  # on the former run ours, whatever users' run on
        devices = jax.local_devices(backend=platform)
        ones = np.ones((len(devices), 64, 64), np.float32)
        across = jax.NamedSharding(jax.sharding.Mesh(np.array(devices), ("d",)), jax.sharding.PartitionSpec("d"))
        with scope.within(None):  # so it is compiled once, for all sessions
            last += [_work(jax.device_put(ones, onto)) for onto in (across, *devices)]
    until = time.monotonic() + timeout_s
    while not all(array.is_ready() for array in last) and time.monotonic() < until:
        time.sleep(POLL_S)
    return all(array.is_ready() for array in last)


def wait_for_arrays(until: float, give_up: Callable[[], bool]) -> None:
    """Lets dispatched computations reach their sums. Errors belong to whoever reads the arrays."""
    if not process.backend_exists():
        return
    for array in jax.live_arrays():
        with suppress(RuntimeError):  # deleted meanwhile
            # block_until_ready has no timeout, and a thread for it can't be started at the end of the process.
            while not array.is_ready() and time.monotonic() < until and not give_up():
                time.sleep(POLL_S)


def await_executions(timeout_s: float) -> None:
    """Lets executions that an earlier epoch left behind run into its end, before they could join this one's sums."""
    if not wait_for_executions(timeout_s):
        raise JoinError(
            f"Computations that were dispatched before still run after {timeout_s:g} s. Wait for them "
            "(jax.block_until_ready), then try again."
        )

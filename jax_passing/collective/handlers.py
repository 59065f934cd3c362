"""XLA's handlers of our primitives: registered once, and told about what was compiled."""

import functools
import time

import jax
import numpy as np

from jax_passing import _compat, _native


@functools.cache
def register_ffi() -> None:
    """Tells XLA of the handlers; once is enough. Makes JAX's backends exist."""
    # XLA takes a state type only once its backend exists.
    jax.local_devices(backend="cpu")
    name, type_id, type_info = _native.ffi_state_type()
    jax.ffi.register_ffi_type(name, {"type_id": type_id, "type_info": type_info}, platform="cpu")
    for target, handlers in _native.ffi_targets().items():
        jax.ffi.register_ffi_target(target, handlers, platform="cpu")
    jax.monitoring.register_event_duration_secs_listener(_on_event)


def first_device_id() -> int:
    """The smallest id of this process's CPU devices, which are numbered from it."""
    return min(device.id for device in jax.local_devices(backend="cpu"))


def _on_event(event: str, duration_secs: float, **_: str | int) -> None:
    # Comes on the thread that lowered and compiled, which may not be the one on which XLA made the handlers' instances.
    # JAX may compile one module several times, once for each device: so all that this thread ever lowered may be over.
    if event != "/jax/core/compile/backend_compile_duration":
        return
    for program, ordinal in _native.end_compilation(_compat.modules_of_thread()):
        fingerprint = _compat.module_fingerprint("passing_psum", {"ordinal": ordinal})
        if fingerprint is not None:
            _native.set_fingerprint(program, ordinal, fingerprint)


def wait_for_executions(timeout_s: float) -> bool:
    """Waits until what this thread dispatched to local CPU devices is over; False if it isn't after `timeout_s`.

    The CPU runs the executions that a thread dispatches one after the other: those on several devices in one line,
    those on a single one in another. So one more of each kind ends last. It must cost more than JAX's limit for
    running at once, out of turn.
    """
    if register_ffi.cache_info().currsize == 0:  # nothing was ever lowered
        return True
    devices = jax.local_devices(backend="cpu")
    ones = np.ones((len(devices), 64, 64), np.float32)
    across = jax.NamedSharding(jax.sharding.Mesh(np.array(devices), ("d",)), jax.sharding.PartitionSpec("d"))
    work = jax.jit(lambda x: x @ x)
    last = [work(jax.device_put(ones, place)) for place in (across, *devices)]
    until = time.monotonic() + timeout_s
    while not all(array.is_ready() for array in last) and time.monotonic() < until:
        time.sleep(0.002)
    return all(array.is_ready() for array in last)

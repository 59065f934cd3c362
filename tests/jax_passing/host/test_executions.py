"""A session that begins lets what was dispatched before come to its end, on all of the process's devices."""

import threading

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from jax_passing.host import executions


def test_waits_for_executions():
    go = threading.Event()

    def wait(x):
        assert go.wait(20)
        return np.asarray(x)

    waiting = jax.jit(  # on one device JAX would call it at once
        jax.shard_map(
            lambda x: jax.pure_callback(wait, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
            mesh=jax.sharding.Mesh(np.array(jax.local_devices()[:2]), ("d",)),
            in_specs=P("d"),
            out_specs=P("d"),
        )
    )
    try:
        left = waiting(np.ones((2, 3), np.float32))
        assert not executions.wait_for_executions(0.3)
        assert not left.is_ready()
    finally:
        go.set()
    assert executions.wait_for_executions(60)
    assert left.is_ready()


def test_asks_the_devices_on_which_programs_run(monkeypatch):
    """They may be others than the CPU's: here they are made up."""
    devices = {"cpu": jax.local_devices()[:2], "tpu": jax.local_devices()[2:4]}
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    monkeypatch.setattr(jax, "local_devices", lambda *, backend: devices[backend])
    busy = {devices["tpu"][1]}

    class Result:
        def __init__(self, x):
            self._devices = x.sharding.device_set

        def is_ready(self):
            return busy.isdisjoint(self._devices)

    monkeypatch.setattr(executions, "_work", Result)
    assert not executions.wait_for_executions(0.05)
    busy.clear()
    assert executions.wait_for_executions(0.05)

"""A session that begins lets what was dispatched before come to its end, on all of the process's devices."""

import threading

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jax_passing.host import executions


@pytest.mark.parametrize("beside", [False, True], ids=["cpu", "another platform"])
def test_waits_for_executions(monkeypatch, beside):
    """That on which programs run may have devices beside the CPU's: here it is made up of other CPU devices."""
    devices = {"cpu": jax.local_devices()[:2], "tpu": jax.local_devices()[2:4]}
    platform = "tpu" if beside else "cpu"
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(jax, "local_devices", lambda *, backend: devices[backend])
    go = threading.Event()

    def wait(x):
        assert go.wait(20)
        return np.asarray(x)

    mesh = jax.sharding.Mesh(np.array(devices[platform]), ("d",))
    waiting = jax.jit(  # on one device JAX would call it at once
        jax.shard_map(
            lambda x: jax.pure_callback(wait, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
            mesh=mesh,
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

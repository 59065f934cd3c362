"""XLA's trampoline for MPI takes our library, named before `import jax` or after it, and reaches the server."""

import ctypes
import os
import socket
import subprocess
import sys

import pytest

from jax_passing import _native

# One process of jax.distributed, whose two devices are all there are. A server in Python answers for them.
PROGRAM = """
import os, sys, threading, time, types
moment, port, outcome = sys.argv[1:]
if moment == "late":
    del os.environ["MPITRAMPOLINE_LIB"]
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from jax_passing import _native
if moment == "late":
    os.environ["MPITRAMPOLINE_LIB"] = _native.__file__
    assert _native.bind_mpi_late() is None
assert _native.bind_mpi_late() is None  # again changes nothing

class Server:
    def __init__(self):
        self.lock, self.waiting, self.local = threading.Lock(), {}, _native.LocalCollective()
    def begin(self):
        for _ in range(2):  # again changes nothing
            assert _native.watch_xla() is None
        return 0, 1
    def split(self, color, key, devices):
        if outcome == "fails":
            raise TimeoutError("rank 7 is missing")
        if outcome == "leaves":
            time.sleep(3)
        assert devices == (0, 1) and color == 0, (color, devices)
        group = {"id": color, "name": "both devices", "hosts": [0, 0], "collective": self.local, "deadline_s": 30.0}
        return types.SimpleNamespace(**group)
    def send(self, group, own, to, tag, data, request):
        self.meet((group, own, to, tag), data, request)
    def receive(self, group, own, origin, tag, buffer, request):
        self.meet((group, origin, own, tag), buffer, request)
    def meet(self, key, view, request):
        with self.lock:
            if outcome.startswith("raises"):
                key += (view.readonly,)  # nobody meets
            if key not in self.waiting:
                self.waiting[key] = view, request
                return
            other, others = self.waiting.pop(key)
            source, target = (view, other) if view.readonly else (other, view)
            target[:] = source
            request.done()
            others.done()
    def moved_bytes(self):
        return 0
    def stalled(self, group, own, number, what, still_s):
        if outcome.startswith("raises"):
            raise RAISED[outcome]
        return None
    def end(self):
        print("ended", flush=True)

class SilentError(Exception):
    def __str__(self):
        raise ValueError("no text")

RAISED = {
    "raises": SilentError(),
    "raises no text for others": OSError("no file " + chr(0xDCFF)),
    "raises to end the program": SystemExit(3),
}
_native.serve_mpi(Server())
jax.config.update("jax_cpu_collectives_implementation", "mpi")
jax.distributed.initialize(f"127.0.0.1:{port}", 1, 0)
mesh = jax.make_mesh((2,), ("d",))
x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("d")))
total = jax.jit(jnp.sum)(x)
if outcome == "leaves":
    sys.exit()
try:
    assert total == 28
except Exception as error:
    assert outcome == "fails" and "MPI error: PassingError: TimeoutError: rank 7 is missing" in str(error), error
    print("lives", flush=True)
    sys.exit()
assert outcome != "fails"

if outcome.startswith("raises"):
    swap = jax.shard_map(lambda x: jax.lax.pshuffle(x, "d", [1, 0]), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    try:
        np.asarray(jax.jit(swap)(x))
    except Exception as error:
        time.sleep(0.1)  # what is for the program comes now
        print(error, flush=True)
    sys.exit()

@jax.jit
@jax.shard_map(mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
def all_of_them(x):
    swapped = jax.lax.ppermute(x, "d", [(0, 1), (1, 0)])
    turned = jax.lax.all_to_all(x.reshape(2, 2), "d", 0, 0, tiled=True).reshape(-1)
    parts = jax.lax.psum_scatter(x, "d", tiled=True)
    return jnp.concatenate([jax.lax.pmax(x, "d"), jax.lax.all_gather(x, "d", tiled=True), swapped, turned, parts])

own, others = np.split(np.asarray(all_of_them(x)), 2)
np.testing.assert_array_equal(own, [4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 0, 1, 4, 5, 4, 6])
np.testing.assert_array_equal(others, [4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 2, 3, 6, 7, 8, 10])
with open("/proc/self/maps") as maps:
    assert len({line.split()[-1] for line in maps if "/_native." in line}) == 1
"""


def run(moment, outcome):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "MPITRAMPOLINE_LIB": _native.__file__,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-c", PROGRAM, moment, str(port), outcome]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("moment", ["early", "late"])
def test_jitted_programs_reach_the_server(moment):
    ended = run(moment, "works")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "ended\n" * 2  # JAX has ended, and Python ends
    assert "nanobind" not in ended.stderr  # which tells of leaks


def test_what_a_server_raises_is_raised_by_jax():
    ended = run("late", "fails")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "lives\n" + "ended\n" * 2


@pytest.mark.parametrize(
    ("outcome", "told"),
    [("raises", "PassingError: SilentError"), ("raises no text for others", r"PassingError: OSError: no file \udcff")],
)
def test_exceptions_whose_text_is_none(outcome, told):
    ended = run("early", outcome)
    assert ended.returncode == 0, ended.stderr
    assert told in ended.stdout


def test_the_program_gets_what_a_signal_raises():
    ended = run("early", "raises to end the program")
    assert ended.returncode == 3, ended.stderr


def test_a_program_may_end_before_its_collectives():
    ended = run("late", "leaves")
    assert ended.returncode == 0, ended.stderr
    assert "nanobind" not in ended.stderr


def test_a_group_that_failed_has_no_device():
    """XLA asks only for rank and size: as device 0 it would take what is sent by device 0 for its own."""
    library, value = ctypes.CDLL(_native.__file__), ctypes.c_int(7)
    for name, told in [("rank", -1), ("size", 0)]:
        assert library[f"MPIABI_Comm_{name}"](ctypes.c_size_t(123456), ctypes.byref(value)) != 0
        assert value.value == told


def test_other_functions_of_mpi_say_that_they_are_not_there():
    library = ctypes.CDLL(_native.__file__)
    text, size = ctypes.create_string_buffer(1024), ctypes.c_int()
    assert library.MPIABI_Error_string(library.MPIABI_Win_create(None), text, ctypes.byref(size)) == 0
    assert text.value.startswith(b"NotImplementedError: MPI_Win_create was called")
    assert size.value == len(text.value)


def test_another_library_is_not_bound(monkeypatch):
    monkeypatch.setenv("MPITRAMPOLINE_LIB", "/lib/libmpiwrapper.so")
    reason = _native.bind_mpi_late()
    assert reason is not None
    assert "MPITRAMPOLINE_LIB doesn't name" in reason

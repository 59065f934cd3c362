"""XLA's handlers of our primitives: registered once, and told about what was compiled."""

import functools
from collections.abc import Mapping
from typing import Any

import jax

from jax_passing import _native
from jax_passing._compat import lowered_modules, patches, process
from jax_passing.collective.runtime import stream_check  # noqa: F401 (for its patch)
from jax_passing.collective.runtime.compiled_text import fingerprint_of_module
from jax_passing.host.preparations import when_beginning


@functools.cache
def register_ffi() -> None:
    """Tells XLA of the handlers; once is enough. Makes JAX's backends exist."""
    # XLA takes a state type only once its backend exists.
    cpu_devices = jax.local_devices(backend="cpu")
    _register("cpu", _native.ffi_state_type(), _native.ffi_targets())
    cuda_devices = process.cuda_devices()
    if cuda_devices:
        _register("CUDA", _native.cuda_ffi_state_type(), _native.cuda_ffi_targets())
        _native.set_cuda_devices(
            [(device.local_hardware_id, device.id) for device in cuda_devices],
            first_device_id=min(device.id for device in cpu_devices),
        )


def _register(platform: str, state: tuple[str, Any, Any], targets: Mapping[str, Any]) -> None:
    name, type_id, type_info = state
    jax.ffi.register_ffi_type(name, {"type_id": type_id, "type_info": type_info}, platform=platform)
    for target, handlers in targets.items():
        jax.ffi.register_ffi_target(target, handlers, platform=platform)


@patches.END_OF_COMPILATION.uses
def _on_event(event: str, duration_secs: float, **_: str | int) -> None:
    # Comes on the thread that lowered and compiled, which may not be the one on which XLA made the handlers' instances.
    # JAX may compile one module several times, once for each device: so all that this thread ever lowered may be over.
    if event != "/jax/core/compile/backend_compile_duration":
        return
    for program, ordinal in _native.end_compilation(lowered_modules.modules_of_thread()):
        fingerprint = fingerprint_of_module(program, ordinal)
        if fingerprint is not None:
            _native.set_fingerprint(program, ordinal, fingerprint)


when_beginning(register_ffi)  # executables that were compiled elsewhere need the handlers, too

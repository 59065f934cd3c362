"""Runs one of these programs, on some hosts as if they had GPUs: as_on_gpu.py DRIVER RANKS PROGRAM ARGUMENTS...

On these ranks sums on CPU devices are lowered as for GPUs, and done with DRIVER, which stands in for CUDA's: its device
memory is the process's. Several devices add up sums of any size before.
"""

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import jax
from jax.interpreters import mlir

from jax_passing import _native
from jax_passing.collective.lowering.gpu import in_host, start_and_done
from jax_passing.collective.primitives import hold, passing_psum
from jax_passing.collective.runtime import platforms


def as_on_gpu(driver: str) -> None:
    ours = {**_native.ffi_targets(), **_native.cuda_ffi_targets_on_cpu(driver)}
    _native.ffi_targets = lambda: ours
    devices = jax.local_devices()
    name, type_id, type_info = _native.cuda_ffi_state_type()
    jax.ffi.register_ffi_type(name, {"type_id": type_id, "type_info": type_info}, platform="cpu")
    _native.set_cuda_devices([(device.id, device.id) for device in devices], first_device_id=devices[0].id)
    for each in (passing_psum.passing_psum_p, passing_psum.passing_psum_invariant_p):
        mlir.register_lowering(each, start_and_done.lower_on_gpu, platform="cpu", cacheable=False)
    platforms.by_ffi_on_cpu = lambda _: False  # gathers are sums of rows
    in_host.WORTH_BYTES = 0
    scatter = in_host.scatter

    def scatter_and_tell(*arguments: Any) -> Any:
        print("devices add up first")
        return scatter(*arguments)

    in_host.scatter = scatter_and_tell
    mlir.register_lowering(hold.passing_hold_p, hold._lower_on_gpu, platform="cpu", cacheable=False)


driver, ranks, program = sys.argv[1:4]
if os.environ["JAX_PASSING_RANK"] in ranks.split(","):
    as_on_gpu(driver)
    print("as on a GPU")
sys.argv = sys.argv[3:]
runpy.run_path(str(Path(__file__).parent / program), run_name="__main__")

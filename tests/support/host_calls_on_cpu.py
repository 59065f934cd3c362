"""CPU devices take the way of TPU devices: sums by calls of Python, where XLA would call our handlers."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax._src import dispatch
from jax._src.interpreters import mlir

from jax_passing._compat import host_callbacks, jaxprs
from jax_passing.collective import platforms
from jax_passing.collective.axes import passing_rank_p, passing_world_size_p
from jax_passing.collective.primitive import passing_psum_invariant_p, passing_psum_p


@contextmanager
def host_calls_on_cpu() -> Iterator[None]:
    """In this block, for whatever is traced, lowered and compiled there."""
    rules = mlir._platform_specific_lowerings
    primitives = (passing_psum_p, passing_psum_invariant_p, passing_rank_p, passing_world_size_p)
    own = {primitive: rules["cpu"][primitive] for primitive in primitives}
    rules["cpu"].update({primitive: rules["tpu"][primitive] for primitive in primitives})
    by_host_calls, platforms.BY_HOST_CALLS = platforms.BY_HOST_CALLS, ("cpu", *platforms.BY_HOST_CALLS)
    for primitive in jaxprs.summing:
        host_callbacks.require_devices(primitive)
    jax.clear_caches()
    try:
        yield
    finally:
        rules["cpu"].update(own)
        platforms.BY_HOST_CALLS = by_host_calls
        dispatch.prim_requires_devices_during_lowering -= jaxprs.summing
        jax.clear_caches()

"""CPU devices take the way of TPU devices: sums by calls of Python, where XLA would call our handlers."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax._src import dispatch

from jax_passing._compat import host_callbacks, jaxprs
from jax_passing.collective.primitives import passing_psum  # noqa: F401 (the latter has rules)
from jax_passing.collective.runtime import platforms


@contextmanager
def host_calls_on_cpu() -> Iterator[None]:
    """Makes host calls of all sums that are traced, lowered and compiled in this block."""
    own = [(rules, rules["cpu"]) for rules in platforms.rules.values()]
    for rules, _ in own:
        rules["cpu"] = rules["tpu"]
    by_host_calls, platforms.BY_HOST_CALLS = platforms.BY_HOST_CALLS, ("cpu", *platforms.BY_HOST_CALLS)
    for summing in jaxprs.summing:
        host_callbacks.require_devices(summing)
    jax.clear_caches()
    try:
        yield
    finally:
        for rules, rule in own:
            rules["cpu"] = rule
        platforms.BY_HOST_CALLS = by_host_calls
        dispatch.prim_requires_devices_during_lowering -= jaxprs.summing
        jax.clear_caches()

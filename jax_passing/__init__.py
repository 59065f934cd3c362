"""Sums over the devices of all hosts: first inside each host, then inside the network."""

import importlib
from typing import TYPE_CHECKING, Any

from jax_passing import errors

if TYPE_CHECKING:
    from jax_passing.all_gather import all_gather, psum_scatter
    from jax_passing.axes import axis_index, axis_size
    from jax_passing.broadcast import broadcast
    from jax_passing.lax_over_hosts import lax_over_hosts
    from jax_passing.pmax import pmax, pmin
    from jax_passing.process_sum import barrier, process_sum
    from jax_passing.psum import pmean, psum
    from jax_passing.pvary import pvary
    from jax_passing.scope import per_host_gradients, stream
    from jax_passing.session import Session, init

_HOMES = {
    "all_gather": ("all_gather", "psum_scatter"),
    "axes": ("axis_index", "axis_size"),
    "broadcast": ("broadcast",),
    "lax_over_hosts": ("lax_over_hosts",),
    "pmax": ("pmax", "pmin"),
    "process_sum": ("barrier", "process_sum"),
    "psum": ("pmean", "psum"),
    "pvary": ("pvary",),
    "scope": ("per_host_gradients", "stream"),
    "session": ("Session", "init"),
}

__all__ = [
    "Session",
    "all_gather",
    "axis_index",
    "axis_size",
    "barrier",
    "broadcast",
    "errors",
    "init",
    "lax_over_hosts",
    "per_host_gradients",
    "pmax",
    "pmean",
    "pmin",
    "process_sum",
    "psum",
    "psum_scatter",
    "pvary",
    "stream",
]


def __getattr__(name: str) -> Any:
    """On first use: the switch and the launcher, which are of this package too, need no JAX and must start fast."""
    if name not in __all__:
        try:
            return importlib.import_module(f"jax_passing.{name}")
        except ModuleNotFoundError:
            raise AttributeError(f"module 'jax_passing' has no attribute {name!r}") from None
    # All at once: importing the module psum has bound its name here.
    modules = {home: importlib.import_module(f"jax_passing.{home}") for home in _HOMES}
    globals().update({each: getattr(modules[home], each) for home, names in _HOMES.items() for each in names})
    return globals()[name]

"""Sums over the devices of all hosts: first inside each host, then inside the network."""

import importlib
import importlib.metadata
import pkgutil
from typing import TYPE_CHECKING, Any

from jax_passing import errors

if TYPE_CHECKING:
    from jax_passing.collective.all_gather import all_gather, psum_scatter
    from jax_passing.collective.axes import axis_index, axis_size
    from jax_passing.collective.broadcast import broadcast
    from jax_passing.collective.lax_over_hosts import lax_over_hosts
    from jax_passing.collective.pmax import pmax, pmin
    from jax_passing.collective.process_sum import barrier, process_sum
    from jax_passing.collective.psum import pmean, psum
    from jax_passing.collective.pvary import pvary
    from jax_passing.host import session
    from jax_passing.host.scope import per_host_gradients, stream
    from jax_passing.host.session import Session, init

    __version__: str

_HOMES = {
    "collective.all_gather": ("all_gather", "psum_scatter"),
    "collective.axes": ("axis_index", "axis_size"),
    "collective.broadcast": ("broadcast",),
    "collective.lax_over_hosts": ("lax_over_hosts",),
    "collective.pmax": ("pmax", "pmin"),
    "collective.process_sum": ("barrier", "process_sum"),
    "collective.psum": ("pmean", "psum"),
    "collective.pvary": ("pvary",),
    "host.scope": ("per_host_gradients", "stream"),
    "host.session": ("Session", "init"),
    "host": ("session",),  # the module, for session.current()
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
    "session",
    "stream",
]


# Where the current folder is a checkout of the sources, it hides the installed package, which has the native module.
__path__ = pkgutil.extend_path(__path__, __name__)


def __getattr__(name: str) -> Any:
    """On first use: the switch and the launcher, which are of this package too, need no JAX and must start fast."""
    if name == "_native":
        return _import_native()
    if name == "__version__":
        return importlib.metadata.version("jax-passing")
    if name not in __all__:
        raise AttributeError(f"module 'jax_passing' has no attribute {name!r}")
    for home, names in _HOMES.items():
        module = importlib.import_module(f"jax_passing.{home}")
        globals().update({each: getattr(module, each) for each in names})
    return globals()[name]


def __dir__() -> list[str]:
    """The public names. What else there is belongs to the machinery of modules."""
    return sorted(__all__)


def _import_native() -> Any:
    try:
        return importlib.import_module("jax_passing._native")
    except ModuleNotFoundError:
        raise ImportError(
            f"jax_passing at {__path__[0]} is its source code, and no installed package has the part of it that is "
            "compiled. Build and install it: run `pip install .` in the folder above."
        ) from None

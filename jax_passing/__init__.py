"""Sums over the devices of all hosts: first inside each host, then inside the network."""

import importlib
from typing import TYPE_CHECKING, Any

from jax_passing import errors

if TYPE_CHECKING:
    from jax_passing.axes import axis_index, axis_size
    from jax_passing.psum import pmean, psum
    from jax_passing.pvary import pvary
    from jax_passing.scope import per_host_gradients, stream
    from jax_passing.session import Session, init

_HOMES = {
    "axes": ("axis_index", "axis_size"),
    "psum": ("pmean", "psum"),
    "pvary": ("pvary",),
    "scope": ("per_host_gradients", "stream"),
    "session": ("Session", "init"),
}

__all__ = [
    "Session",
    "axis_index",
    "axis_size",
    "errors",
    "init",
    "per_host_gradients",
    "pmean",
    "psum",
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

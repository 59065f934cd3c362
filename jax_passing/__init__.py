"""Sums over the devices of all hosts: first inside each host, then inside the network."""

import importlib
from typing import TYPE_CHECKING, Any

from jax_passing import errors

if TYPE_CHECKING:
    from jax_passing.psum import pmean, psum
    from jax_passing.session import Session, init

__all__ = ["Session", "errors", "init", "pmean", "psum"]


def __getattr__(name: str) -> Any:
    """On first use: the switch and the launcher, which are of this package too, need no JAX and must start fast."""
    if name not in __all__:
        try:
            return importlib.import_module(f"jax_passing.{name}")
        except ModuleNotFoundError:
            raise AttributeError(f"module 'jax_passing' has no attribute {name!r}") from None
    sums, session = (importlib.import_module(f"jax_passing.{module}") for module in ("psum", "session"))
    # All at once: importing the module psum has bound its name here.
    globals().update(psum=sums.psum, pmean=sums.pmean, Session=session.Session, init=session.init)
    return globals()[name]

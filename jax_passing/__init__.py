"""An all-reduce for JAX over the devices of all hosts: it sums first inside each host, then inside the network."""

import importlib
import importlib.metadata
import importlib.util
import pkgutil
from typing import TYPE_CHECKING, Any

from jax_passing import errors as errors

# Where the current folder is a checkout of the sources, it hides the installed package, which has the native module.
__path__ = pkgutil.extend_path(__path__, __name__)

if TYPE_CHECKING:
    from jax_passing._public import *  # noqa: F403

    from . import optax as optax
    from . import ray as ray

    __version__: str


def __getattr__(name: str) -> Any:
    """Imports the public names when the first of them is used. The switch and the launcher, which are in this package,
    too, need no JAX and must start fast."""
    if name == "_native":
        return _import_native()
    if name == "__version__":
        return _version()
    if name in ("optax", "ray"):
        return importlib.import_module(f"jax_passing.{name}")  # the only part that needs the library of this name
    if name == "__all__":
        return ["errors", *_public_names()]
    # An import statement asks for a module's name, too, before it imports the module.
    if name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}") or name not in _public_names():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update(_public_names())
    return globals()[name]


def __dir__() -> list[str]:
    """Lists the public names, without the machinery of modules."""
    return sorted(["errors", *_public_names()])


def _public_names() -> dict[str, Any]:
    public = importlib.import_module("jax_passing._public")
    return {name: value for name, value in vars(public).items() if not name.startswith("_")}


def _version() -> str:
    try:
        return importlib.metadata.version("jax-passing")
    except importlib.metadata.PackageNotFoundError:
        # A made-up version would mislead those who compare it.
        raise AttributeError(
            f"module 'jax_passing' has no attribute '__version__': {__path__[0]} is its source code, and only an "
            "installed package knows its version. Install it: run `pip install .` in the folder above."
        ) from None


def _import_native() -> Any:
    try:
        return importlib.import_module("jax_passing._native")
    except ModuleNotFoundError:
        raise ImportError(
            f"jax_passing at {__path__[0]} is its source code, and no installed package has the part of it that is "
            "compiled. Build and install it: run `pip install .` in the folder above."
        ) from None

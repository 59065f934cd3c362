"""Sums over the devices of all hosts: first inside each host, then inside the network."""

import importlib
import importlib.metadata
import pkgutil
from typing import TYPE_CHECKING, Any

from jax_passing import errors as errors

if TYPE_CHECKING:  # `as`: type checkers read no __all__ that is computed
    from jax_passing.collective.all_gather import all_gather as all_gather
    from jax_passing.collective.all_gather import psum_scatter as psum_scatter
    from jax_passing.collective.axes import axis_index as axis_index
    from jax_passing.collective.axes import axis_size as axis_size
    from jax_passing.collective.broadcast import broadcast as broadcast
    from jax_passing.collective.lax_over_hosts import lax_over_hosts as lax_over_hosts
    from jax_passing.collective.overlap import overlap as overlap
    from jax_passing.collective.pmax import pmax as pmax
    from jax_passing.collective.pmax import pmin as pmin
    from jax_passing.collective.primitives.jax_rules import per_host_gradients as per_host_gradients
    from jax_passing.collective.process_sum import barrier as barrier
    from jax_passing.collective.process_sum import on_rank_zero as on_rank_zero
    from jax_passing.collective.process_sum import process_sum as process_sum
    from jax_passing.collective.psum import pmean as pmean
    from jax_passing.collective.psum import psum as psum
    from jax_passing.collective.pvary import pvary as pvary
    from jax_passing.host import session as session
    from jax_passing.host.init import init as init
    from jax_passing.host.scope import stream as stream
    from jax_passing.host.session import Session as Session
    from jax_passing.partitioning.cut import cut as cut
    from jax_passing.partitioning.partition import partition as partition
    from jax_passing.partitioning.plan import Plan as Plan
    from jax_passing.pipelining.jobs import StageJob as StageJob
    from jax_passing.pipelining.jobs import stage_job as stage_job
    from jax_passing.pipelining.pipeline import Pipeline as Pipeline
    from jax_passing.pipelining.pipeline import pipeline as pipeline
    from jax_passing.pipelining.simulation import simulate as simulate

    __version__: str

_HOMES = {
    "collective.all_gather": ("all_gather", "psum_scatter"),
    "collective.axes": ("axis_index", "axis_size"),
    "collective.broadcast": ("broadcast",),
    "collective.primitives.jax_rules": ("per_host_gradients",),
    "collective.lax_over_hosts": ("lax_over_hosts",),
    "collective.overlap": ("overlap",),
    "collective.pmax": ("pmax", "pmin"),
    "collective.process_sum": ("barrier", "on_rank_zero", "process_sum"),
    "collective.psum": ("pmean", "psum"),
    "collective.pvary": ("pvary",),
    "host.scope": ("stream",),
    "host.init": ("init",),
    "host.session": ("Session",),
    "partitioning.cut": ("cut",),
    "partitioning.partition": ("partition",),
    "partitioning.plan": ("Plan",),
    "pipelining.jobs": ("StageJob", "stage_job"),
    "pipelining.pipeline": ("Pipeline", "pipeline"),
    "pipelining.simulation": ("simulate",),
    "host": ("session",),  # the module, for session.current()
}

__all__ = ["errors", *(name for names in _HOMES.values() for name in names)]


# Where the current folder is a checkout of the sources, it hides the installed package, which has the native module.
__path__ = pkgutil.extend_path(__path__, __name__)


def __getattr__(name: str) -> Any:
    """On first use: the switch and the launcher, which are of this package too, need no JAX and must start fast."""
    if name == "_native":
        return _import_native()
    if name == "__version__":
        return _version()
    if name not in __all__:
        raise AttributeError(f"module 'jax_passing' has no attribute {name!r}")
    for home, names in _HOMES.items():
        module = importlib.import_module(f"jax_passing.{home}")
        globals().update({each: getattr(module, each) for each in names})
    return globals()[name]


def __dir__() -> list[str]:
    """The public names. What else there is belongs to the machinery of modules."""
    return sorted(__all__)


def _version() -> str:
    try:
        return importlib.metadata.version("jax-passing")
    except importlib.metadata.PackageNotFoundError:
        # None is made up: whoever compares versions must not be misled.
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

"""`lax_over_hosts`: for libraries that call JAX's own collectives."""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from jax_passing.collective import composed
from jax_passing.collective.all_gather import all_gather, psum_scatter
from jax_passing.collective.axes import as_axes, axis_index, axis_size, declared
from jax_passing.collective.pmax import pmax, pmin
from jax_passing.collective.psum import pmean, psum
from jax_passing.errors import ConfigError
from jax_passing.host import scope as scopes

_OURS: dict[str, Callable[..., Any]] = {
    "all_gather": all_gather,
    "axis_index": axis_index,
    "axis_size": axis_size,
    "pmax": pmax,
    "pmean": pmean,
    "pmin": pmin,
    "psum": psum,
    "psum_scatter": psum_scatter,
}
_OF_VARYING = ("pmean", "psum", "psum_scatter")  # which JAX casts to, and ours asks for
_NOT_OURS = (
    "all_to_all", "pbroadcast", "ppermute", "precv", "psend", "pshuffle", "pswapaxes", "ragged_all_to_all",
)  # fmt: skip

_install_lock = threading.Lock()  # two threads at once would both find nothing in the cache


@contextmanager
def lax_over_hosts() -> Iterator[None]:
    """In this block, and on this thread, collectives of jax.lax over an axis that `init` declares go over all hosts.

    For libraries that know only JAX:

        with jax_passing.lax_over_hosts():
            step(state, batch)    # whose nn.BatchNorm(axis_name="d") calls jax.lax.pmean

    Those are psum, pmean, pmax, pmin, all_gather, psum_scatter, axis_index and axis_size, called as attributes of
    jax.lax; other collectives over such an axis raise ConfigError. Axes that aren't declared, meshes that span the
    processes, and other threads keep JAX's own. What counts is where a function is traced: jitted functions are traced
    anew for the block. A gradient's custom backward function (jax.custom_vjp) is traced where the gradient is taken.

    Raises:
      NotInitializedError: there is no session.
      ThreadError: another thread called `init`.
    """
    scope = scopes.required("lax_over_hosts")
    with _install_lock:
        _install()
    with scopes.within(scope._replace(lax_over_hosts=True)):
        yield


@functools.cache
def _install() -> None:
    """Once, and for good: outside of the block they do as before."""
    for name, ours in _OURS.items():
        setattr(jax.lax, name, _dispatching(name, getattr(jax.lax, name), ours))
    for name in _NOT_OURS:
        if hasattr(jax.lax, name):
            setattr(jax.lax, name, _refusing(name, getattr(jax.lax, name)))


def _over_hosts(axis_name: Any) -> bool:
    scope = scopes.of_thread()
    return scope is not None and scope.lax_over_hosts and bool(declared(as_axes(axis_name), scope))


def _dispatching(name: str, theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    if name in ("axis_index", "axis_size"):

        @functools.wraps(theirs)
        def of_axis(axis_name: Any) -> Any:
            return ours(axis_name) if _over_hosts(axis_name) else theirs(axis_name)

        return of_axis

    @functools.wraps(theirs)
    def of_tree(x: Any, axis_name: Any, *, axis_index_groups: Any = None, to: str = "varying", **options: Any) -> Any:
        if not _over_hosts(axis_name):
            more = {**options, "to": to} if name == "all_gather" else options
            return theirs(x, axis_name, axis_index_groups=axis_index_groups, **more)
        if axis_index_groups is not None:
            raise ConfigError(
                f"jax.lax.{name} over {axis_name!r} with axis_index_groups: the axis continues over the hosts, and "
                "groups of its devices aren't supported there. Leave them out, or name the axis otherwise than "
                "init(axis_name=...) does."
            )
        if to != "varying":
            raise ConfigError(f"jax.lax.all_gather over {axis_name!r} to={to!r}: over the hosts it is varying only.")
        if name in _OF_VARYING:
            x = jax.tree.map(lambda leaf: _cast(leaf, as_axes(axis_name)), x)
        return ours(x, axis_name, **options)

    return of_tree


def _cast(leaf: Any, axes: tuple[Any, ...]) -> Any:
    return composed.varying(leaf, axes) if isinstance(leaf, jax.core.Tracer) else leaf


def _refusing(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def refusing(*args: Any, **kwargs: Any) -> Any:
        axis_name = signature.bind(*args, **kwargs).arguments["axis_name"]
        if _over_hosts(axis_name):
            raise ConfigError(
                f"jax.lax.{name} over {axis_name!r}: the axis continues over the hosts, and this collective doesn't. "
                f"Those that do are {', '.join(_OURS)}, and jax_passing.broadcast."
            )
        return theirs(*args, **kwargs)

    return refusing

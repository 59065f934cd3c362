"""`lax_over_hosts` and `per_host_gradients` say what JAX's own collectives do over an axis that goes on over the hosts.

Elsewhere they stay inside this host, and a warning says so.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from jax_passing._compat import named_axes, patches
from jax_passing.collective.all_gather import all_gather, psum_scatter
from jax_passing.collective.axes import as_axes, axis_index, axis_size, declared
from jax_passing.collective.naming.source_location import here
from jax_passing.collective.pmax import pmax, pmin
from jax_passing.collective.primitives import composed
from jax_passing.collective.psum import pmean, psum
from jax_passing.errors import ConfigError
from jax_passing.host import inside
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


@contextmanager
def lax_over_hosts() -> Iterator[None]:
    """Lets the collectives of jax.lax over an axis that `init` declares go over all hosts, in a block, on this thread.

    For libraries that know only JAX:

        with jax_passing.lax_over_hosts():
            step(state, batch)    # whose nn.BatchNorm(axis_name="d") calls jax.lax.pmean

    Those are psum, pmean, pmax, pmin, all_gather, psum_scatter, axis_index and axis_size, by whatever name a library
    has imported them; other collectives over such an axis raise ConfigError. Axes that aren't declared, meshes that
    span the processes, and other threads keep JAX's own. What counts is where a function is traced: jitted functions
    are traced anew for the block. A gradient's custom backward function (jax.custom_vjp) is traced where the gradient
    is taken.

    Outside of such blocks they stay inside this host. In a session of several hosts they warn of that
    (InsideHostWarning), once for each line; in a `with jax_passing.per_host_gradients():` they don't.

    Raises:
      NotInitializedError: there is no session.
      ThreadError: another thread called `init`.
    """
    scope = scopes.required("lax_over_hosts")
    with scopes.within(scope._replace(lax_over_hosts=True)):
        yield


@contextmanager
def per_host_gradients() -> Iterator[None]:
    """Lets JAX's own casts and sums over an axis that continues over the hosts be differentiated, in a block.

    Their gradients are those of this host's devices only. Elsewhere they are summed over all hosts, or raise
    GradientError where JAX doesn't let them be. Nor does anything in this block warn that collectives of jax.lax over
    such an axis stay inside the host.

    Raises:
      ThreadError: another thread called `init`.
    """
    scope = scopes.current() or scopes.Scope()
    with scopes.within(scope._replace(per_host_gradients=True)):
        yield


@patches.LAX.uses
def _in_place_of(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    # That of "psum_start" is (*args, **kwargs).
    signature = inspect.signature(getattr(jax.lax, name.removesuffix("_start")) if name.endswith("_start") else theirs)

    def collective(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        axes = as_axes(given["axis_name"])
        scope = scopes.of_thread()
        if scope is not None and scope.lax_over_hosts and declared(axes, scope):
            return _over_hosts(name, **given)
        _say_if_inside(name, axes)
        return theirs(*args, **kwargs)

    return collective


def _over_hosts(
    name: str, axis_name: Any, x: Any = None, *, axis_index_groups: Any = None, to: str = "varying", **options: Any
) -> Any:
    ours = _OURS.get(name)
    if ours is None:
        raise ConfigError(
            f"jax.lax.{name} over {axis_name!r}: the axis continues over the hosts, and this collective doesn't. "
            f"Those that do are {', '.join(_OURS)}, and jax_passing.broadcast."
        )
    if name in ("axis_index", "axis_size"):
        return ours(axis_name)
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


def _cast(leaf: Any, axes: tuple[Any, ...]) -> Any:
    return composed.varying(leaf, axes) if isinstance(leaf, jax.core.Tracer) else leaf


def _say_if_inside(name: str, axes: Sequence[Any]) -> None:
    """Warns if this collective of jax.lax stays inside this host though there are others, and nobody asked for that."""
    session, scope = scopes.of_session(), scopes.of_thread()
    if session is None or session.alone or (scope is not None and scope.per_host_gradients):
        return
    if jax.process_count() > 1:  # where a mesh spans the processes JAX's own go over them, and tracing doesn't tell
        return
    bound = [axis for axis in axes if named_axes.axis_exists(axis)]
    if not bound:
        return
    over = declared(bound, session)
    what = f"jax.lax.{name} over {', '.join(map(repr, over or bound))} at {here()}"
    inside.stayed(what, doubtful=bool(over))
    if over and name in _OURS:
        inside.warn_of(
            what,
            f"Write jax_passing.{name}; or, where a library calls it, put `with jax_passing.lax_over_hosts():` around "
            f"the library's call. {_MEANT}",
        )
    elif over:
        inside.warn_of(what, f"Those that can go over the hosts are {', '.join(_OURS)}. {_MEANT}")


_MEANT = (
    "If this host's devices alone are meant, name the axis otherwise, or put `with jax_passing.per_host_gradients():` "
    "around the call."
)

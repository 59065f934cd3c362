"""Collectives of jax.lax stay inside this host, also over an axis that continues over the hosts: a warning says so."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from jax_passing._compat import named_axes, patches, stacks
from jax_passing.collective.axes import as_axes, declared
from jax_passing.collective.naming.source_location import here
from jax_passing.host import inside
from jax_passing.host import scope as scopes

_OURS = ("all_gather", "axis_index", "pmax", "pmean", "pmin", "psum", "psum_scatter")  # by the same names


@contextmanager
def per_host_gradients() -> Iterator[None]:
    """Lets JAX's own casts and sums over an axis that continues over the hosts be differentiated, in a block.

    Their gradients are those of this host's devices only. Elsewhere they are summed over all hosts, or raise
    UsageError where JAX doesn't let them be. Nor does anything in this block warn that collectives of jax.lax over
    such an axis stay inside the host.

    Raises:
      UsageError: another thread called `init`.
    """
    scope = scopes.current() or scopes.Scope()
    with scopes.within(scope._replace(per_host_gradients=True)):
        yield


@patches.COLLECTIVES.uses
def _say_if_inside(axis_name: Any) -> None:
    """Warns if what JAX traces here stays inside this host though there are others, and nobody asked for that."""
    session, scope = scopes.of_session(), scopes.of_thread()
    if session is None or session.alone or (scope is not None and scope.per_host_gradients):
        return
    if jax.process_count() > 1:  # where a mesh spans the processes JAX's own go over them, and tracing doesn't tell
        return
    bound = [axis for axis in as_axes(axis_name) if named_axes.axis_exists(axis)]
    name = stacks.function_of_lax() if bound else None
    if name is not None:
        _say(name, bound, declared(bound, session))


def _say(name: str, bound: Sequence[Any], over: Sequence[Any]) -> None:
    what = f"jax.lax.{name} over {', '.join(map(repr, over or bound))} at {here()}"
    inside.stayed(what, doubtful=bool(over))
    if not over:
        return
    instead = (
        f"Write jax_passing.{name}; or, where a library calls it, have jax_passing.use_for_jax() carry out all "
        "collectives, of a mesh over all processes."
        if name in _OURS
        else f"Those that jax_passing has are {', '.join(_OURS)}; jax_passing.use_for_jax() carries out all of jax.lax."
    )
    inside.warn_of(
        what,
        f"though init(axis_name=...) declares that the axis goes on over all. {instead} If this host's devices alone "
        "are meant, name the axis otherwise, or put `with jax_passing.per_host_gradients():` around the call.",
    )

"""Tells over which devices, on which hosts, an axis goes."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing._compat import jax_collectives, named_axes, patches
from jax_passing.collective.naming.source_location import here
from jax_passing.collective.runtime.rank import host_count, rank
from jax_passing.errors import ConfigError, UsageError
from jax_passing.host import inside
from jax_passing.host import scope as scopes

Axes = tuple[named_axes.Axis, ...]


def as_axes(axis_name: Any) -> Axes:
    """`axis_name` as JAX takes it: a name, or a tuple or list of names."""
    return tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)


def is_bound(axis_name: Any) -> bool:
    """Tells whether the code being traced is within these axes."""
    return all(map(named_axes.axis_exists, as_axes(axis_name)))


class Extent(NamedTuple):
    """The extent of a collective over some axes.

    Attributes:
      axes: names, each bound where this was asked.
      over_hosts: one of them is declared to continue over the hosts, which the mesh doesn't know; None before `init`.
      scope: what else is known of the session.
    """

    axes: Axes
    over_hosts: bool | None
    scope: scopes.Scope

    @property
    def local(self) -> bool:
        """Tells whether JAX's own collective does the same: the axes lie inside this process."""
        return self.over_hosts is False and jax.process_count() == 1

    @property
    def suits_jax(self) -> bool:
        """Tells whether JAX's own collectives work here: they fail where `check_vma` and vmap come together."""
        return not (named_axes.check_vma() and named_axes.vmapped(self.axes))

    @property
    def mesh_size(self) -> int:
        """Returns the number of devices of the mesh (or of elements of a vmap) along the axes."""
        return math.prod(named_axes.axis_size(axis) for axis in self.axes)


def device_count(along: Extent, function: str) -> "int | jax.Array":
    """Returns the number of devices on all hosts: int32[] in an elastic session, known when the program runs.

    Raises UsageError before `init`. `function`: what the user has called."""
    require_session(along, function)
    return along.mesh_size * (host_count(along.scope) if along.over_hosts else 1)


def extent(axis_name: Any) -> Extent:
    """
    Raises:
      NameError: an axis is not bound here.
      ConfigError: nothing says whether the axes go on over the hosts, or two of them do, or one is named twice.
      UsageError: the session is another thread's.
    """
    patches.install()
    axes = as_axes(axis_name)
    for axis in axes:
        named_axes.axis_size(axis)
    if len(set(axes)) < len(axes):
        raise ConfigError(f"An axis stands twice in {axes}: name each one once.")
    scope = scopes.current()
    if scope is None:
        return Extent(axes, None, scopes.Scope())
    if not axes:
        return Extent(axes, False, scope)
    over_hosts = bool(declared(axes, scope))
    if over_hosts and not scope.alone:
        bound = [name for name in scope.axis_names if named_axes.axis_exists(name)]
        if len(bound) > 1:
            raise ConfigError(
                f"The axes {' and '.join(map(repr, bound))} are both in scope here, and init(axis_name=...) declares "
                "that both continue over the hosts. Only one of them can, or a sum over one and then the other would "
                "count each host twice. Declare one, or give the axes of one program other names."
            )
    if not over_hosts and not scope.alone and jax.process_count() == 1:
        if not scope.axis_names:
            raise ConfigError(undeclared(axes))
        _say_if_inside(axes, scope)
    return Extent(axes, over_hosts, scope)


def _say_if_inside(axes: Axes, scope: scopes.Scope) -> None:
    """Notes that axes stay inside this host, and warns of it if none is in scope that goes on over all: in a program of
    several axes one of them may be meant, in any other one the axis was probably given another name than `init` was."""
    what = f"jax_passing's collective over {', '.join(map(repr, axes))} at {here()}"
    inside.stayed(what, doubtful=True)
    if any(map(named_axes.axis_exists, scope.axis_names)):
        return
    names = " or ".join(map(repr, scope.axis_names))
    inside.warn_of(
        what,
        f"as init(axis_name=...) declares {names}, which is not in scope here. Give the axis that name, or declare it "
        "in init. If this host's devices alone are meant, jax.lax has the same collectives.",
    )


def require_session(along: Extent, function: str) -> None:
    """Raises UsageError if nothing is known of the hosts."""
    if along.over_hosts is None:
        raise UsageError(f"no session: call jax_passing.init() before tracing jax_passing.{function}")


class Span(NamedTuple):
    """The devices of an extent in the order of `axis_index`: the axes as they were named, the first one slowest; the
    hosts, by rank, just outside of the axis that continues over them. A parameter of primitives.

    Attributes:
      along: the axes; those of vmap are gone once they are dimensions of arrays.
      hosts_at: before which of the axes the hosts come; None if they don't.
    """

    along: Extent
    hosts_at: int | None

    @property
    def sizes(self) -> list[int]:
        """The sizes of the axes, and the number of hosts where it comes.

        Raises ConfigError in an elastic session, if the hosts are among them: what has the shape of a world of one size
        doesn't suit another one."""
        sizes = [named_axes.axis_size(axis) for axis in self.along.axes]
        if self.hosts_at is not None:
            if self.along.scope.world_size is None:
                raise ConfigError(
                    f"all_gather and psum_scatter over {self.along.axes} have shapes that depend on the number of "
                    "hosts, and in an elastic session (init(world_size_min=...)) that is known only when a program "
                    "runs. Sum what is gathered (jax_passing.psum), gather it over axes inside of the hosts, leave out "
                    "world_size_min, or call this in `with jax_passing.fixed_size():`, which has programs compiled "
                    "again for each number of hosts."
                )
            sizes.insert(self.hosts_at, self.along.scope.world_size)
        return sizes

    @property
    def size(self) -> int:
        return math.prod(self.sizes)

    @property
    def is_elastic(self) -> bool:
        """Tells whether its size is known only when the program runs."""
        return self.hosts_at is not None and self.along.scope.world_size is None

    @property
    def rows_inside(self) -> int:
        """Returns how many devices of a host follow one another; 0 if the mesh knows all of them."""
        if self.hosts_at is None:
            return 0
        return math.prod(named_axes.axis_size(axis) for axis in self.along.axes[self.hosts_at :])

    def axis_index(self) -> jax.Array:
        """int32[], of this device."""
        sizes: list[int | jax.Array] = [named_axes.axis_size(axis) for axis in self.along.axes]
        indices = [jax_collectives.axis_index(axis) for axis in self.along.axes]
        if self.hosts_at is not None:
            sizes.insert(self.hosts_at, host_count(self.along.scope))
            indices.insert(self.hosts_at, rank())
        total = jnp.zeros((), np.int32)
        for size, index in zip(sizes, indices, strict=True):
            total = total * jnp.asarray(size, np.int32) + index
        return total

    def without(self, axis: Any) -> tuple["Span", int]:
        """Returns what is left when `axis` of vmap has become a dimension, and which of `sizes` was its own."""
        k = self.along.axes.index(axis)
        along = self.along._replace(axes=self.along.axes[:k] + self.along.axes[k + 1 :])
        if self.hosts_at is None or k < self.hosts_at:
            return Span(along, None if self.hosts_at is None else self.hosts_at - 1), k
        return Span(along, self.hosts_at), k + 1


def span(along: Extent) -> Span:
    hosts_at = None
    if along.over_hosts:
        hosts_at = min(k for k, axis in enumerate(along.axes) if axis in along.scope.axis_names)
    return Span(along, hosts_at)


def declared(axes: Sequence[Any], scope: scopes.Scope) -> list[Any]:
    """Returns those of `axes` that continue over the hosts."""
    return [axis for axis in axes if axis in scope.axis_names]


def undeclared(axes: Sequence[Any]) -> str:
    names = ", ".join(repr(axis) for axis in axes) or "no axis"
    example = repr(axes[0]) if axes else "'d'"
    return (
        f"Nothing says whether {names} goes on over the hosts: the mesh (pmap, vmap) lies inside this process. Write "
        f"jax_passing.init(axis_name={example}) on every host, and sums over {example} go over all devices of all "
        "hosts, while every other axis stays inside its host; or make one mesh over all processes "
        "(jax.distributed.initialize, then jax.devices()). For a sum of this host's devices alone write jax.lax.psum."
    )


def axis_size(axis_name: Any) -> "int | jax.Array":
    """Number of devices along the axis (or axes), on all hosts. Raises as `psum` does.

    In an elastic session it is an int32[] that the program learns when it runs, if the axis continues over the hosts:
    to be reckoned with, but no shape can depend on it.
    """
    return device_count(extent(axis_name), "axis_size")


def axis_index(axis_name: Any) -> jax.Array:
    """int32[], this device's index along the axis (or axes, the first one slowest), over all hosts.

    The hosts' devices come one host after the other, by rank; all hosts have as many. Raises as `psum` does.
    """
    along = extent(axis_name)
    require_session(along, "axis_index")
    return span(along).axis_index()

"""Over which devices, on which hosts, an axis goes."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jax_passing._compat import jax_collectives, named_axes
from jax_passing.collective.handlers import register_ffi
from jax_passing.errors import ConfigError, NotInitializedError
from jax_passing.host import scope as scopes

Axes = tuple[named_axes.Axis, ...]


def as_axes(axis_name: Any) -> Axes:
    """`axis_name` as JAX takes it: a name, or a tuple or list of names."""
    return tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)


class Extent(NamedTuple):
    """What a collective over some axes goes over.

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
        """Whether JAX's own collective does the same: the axes lie inside this process."""
        return self.over_hosts is False and jax.process_count() == 1

    @property
    def suits_jax(self) -> bool:
        """Whether JAX's own collectives work here: they fail where `check_vma` and vmap come together."""
        return not (named_axes.check_vma() and named_axes.vmapped(self.axes))

    @property
    def mesh_size(self) -> int:
        """How many devices of the mesh (elements, of a vmap) there are along the axes."""
        return math.prod(named_axes.axis_size(axis) for axis in self.axes)

    @property
    def size(self) -> int:
        """How many there are on all hosts. Raises NotInitializedError before `init`."""
        if self.over_hosts is None:
            raise NotInitializedError(
                f"how many devices there are along {self.axes} isn't known without a session: call jax_passing.init() "
                "before tracing what needs it (pmean, axis_size, psum of a Python number)"
            )
        return self.mesh_size * (self.scope.world_size if self.over_hosts else 1)


def extent(axis_name: Any) -> Extent:
    """
    Raises:
      NameError: an axis is not bound here.
      ConfigError: nothing says whether the axes go on over the hosts, or two of them do.
      ThreadError: the session is another thread's.
    """
    axes = as_axes(axis_name)
    for axis in axes:
        named_axes.axis_size(axis)
    scope = scopes.current()
    if scope is None:
        return Extent(axes, None, scopes.Scope())
    if not axes:
        return Extent(axes, False, scope)
    over_hosts = bool(declared(axes, scope))
    if over_hosts and scope.world_size > 1:
        bound = [name for name in scope.axis_names if named_axes.axis_exists(name)]
        if len(bound) > 1:
            raise ConfigError(
                f"The axes {' and '.join(map(repr, bound))} are both in scope here, and init(axis_name=...) declares "
                "that both continue over the hosts. Only one of them can, or a sum over one and then the other would "
                "count each host twice. Declare one, or give the axes of one program other names."
            )
    if not over_hosts and scope.world_size > 1 and not scope.axis_names and jax.process_count() == 1:
        raise ConfigError(undeclared(axes))
    return Extent(axes, over_hosts, scope)


def require_session(along: Extent, function: str) -> None:
    """Raises NotInitializedError if nothing is known of the hosts."""
    if along.over_hosts is None:
        raise NotInitializedError(f"no session: call jax_passing.init() before tracing jax_passing.{function}")


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
        """Of the axes, and the number of hosts in its place."""
        sizes = [named_axes.axis_size(axis) for axis in self.along.axes]
        if self.hosts_at is not None:
            sizes.insert(self.hosts_at, self.along.scope.world_size)
        return sizes

    @property
    def size(self) -> int:
        return math.prod(self.sizes)

    def axis_index(self) -> jax.Array:
        """int32[], of this device."""
        indices = [jax_collectives.axis_index(axis) for axis in self.along.axes]
        if self.hosts_at is not None:
            indices.insert(self.hosts_at, rank())
        total = jnp.zeros((), np.int32)
        for size, index in zip(self.sizes, indices, strict=True):
            total = total * np.int32(size) + index
        return total

    def without(self, axis: Any) -> tuple["Span", int]:
        """What is left when `axis` of vmap has become a dimension, and which of `sizes` was its own."""
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
    """Those of `axes` that continue over the hosts."""
    return [axis for axis in axes if axis in scope.axis_names]


def undeclared(axes: Sequence[Any]) -> str:
    names = ", ".join(repr(axis) for axis in axes) or "no axis"
    example = repr(axes[0]) if axes else "'d'"
    return (
        f"Nothing says whether {names} goes on over the hosts: the mesh (pmap, vmap) lies inside this process. Write "
        f"jax_passing.init(axis_name={example}) on every host, and sums over {example} go over all devices of all "
        "hosts, while every other axis stays inside its host; or make one mesh over all processes "
        "(jax.distributed.initialize, then jax.devices())."
    )


def axis_size(axis_name: Any) -> int:
    """Number of devices along the axis (or axes), on all hosts. Raises as `psum` does."""
    return extent(axis_name).size


def axis_index(axis_name: Any) -> jax.Array:
    """int32[], this device's index along the axis (or axes, the first one slowest), over all hosts.

    The hosts' devices come one host after the other, by rank; all hosts have as many. Raises as `psum` does.
    """
    along = extent(axis_name)
    require_session(along, "axis_index")
    return span(along).axis_index()


# The rank is known when the program runs, not when it is traced: so the hosts' programs are alike.

passing_rank_p = Primitive("passing_rank")


def rank() -> jax.Array:
    """int32[], this host's rank."""
    index: jax.Array = passing_rank_p.bind()
    return index


@functools.cache
def _jitted_rank() -> Any:
    return jax.jit(passing_rank_p.bind)


def _lower_rank(ctx: mlir.LoweringRuleContext) -> Sequence[Any]:
    register_ffi()
    result: Sequence[Any] = jax.ffi.ffi_lowering("passing_rank")(ctx)
    return result


def _lower_rank_elsewhere(ctx: mlir.LoweringRuleContext) -> Sequence[Any]:
    raise NotImplementedError(f"axis_index runs on CPU devices only so far, not on {ctx.module_context.platforms}")


passing_rank_p.def_impl(lambda: _jitted_rank()())
passing_rank_p.def_abstract_eval(lambda: jax.core.ShapedArray((), np.dtype(np.int32)))
batching.primitive_batchers[passing_rank_p] = lambda operands, dims: (passing_rank_p.bind(), None)
mlir.register_lowering(passing_rank_p, _lower_rank_elsewhere)
mlir.register_lowering(passing_rank_p, _lower_rank, platform="cpu")

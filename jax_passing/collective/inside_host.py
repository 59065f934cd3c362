"""Means over the devices of one host, for trainings whose hosts have parameters of their own between two sums."""

from typing import Any, TypeVar

import jax

from jax_passing._compat import jax_collectives
from jax_passing.collective.axes import Extent, extent, require_session
from jax_passing.collective.naming.sites import paths_of
from jax_passing.collective.primitives import composed
from jax_passing.collective.primitives.operands import summand
from jax_passing.errors import ConfigError

_T = TypeVar("_T")


def mean_inside_host(tree: _T, axis_name: Any, function: str) -> _T:
    """Takes the mean of each array over this host's devices along the axis, which goes on over the hosts.

    Under `shard_map(check_vma=True)` it is equal along the axis, as far as this host's mesh goes.

    Args:
      tree: arrays, each device's own.
      axis_name: as for `psum`.
      function: what the user called, for errors.

    Raises:
      ConfigError: the mesh spans the hosts, or the axis doesn't go on over them.
      UsageError, UnvaryingInputError: as `psum`.
    """
    along = extent(axis_name)
    require_session(along, f"optax.{function}")
    _check(along, function)
    leaves, treedef = jax.tree.flatten(tree)
    pairs = zip(leaves, paths_of(tree), strict=True)
    arrays = [summand(leaf, along.axes, function, path) for leaf, path in pairs]
    sums = jax_collectives.psum(arrays, along.axes)
    return jax.tree.unflatten(treedef, [total / along.mesh_size for total in sums])


def each_device_own(tree: _T, axis_name: Any) -> _T:
    """Casts arrays that are equal on a host's devices to summands: each device gives its copy to the sum."""
    axes = extent(axis_name).axes
    return jax.tree.map(lambda leaf: composed.varying(leaf, axes), tree)


def _check(along: Extent, function: str) -> None:
    if along.over_hosts or (along.scope.alone and jax.process_count() == 1):
        return
    names = ", ".join(map(repr, along.axes))
    raise ConfigError(
        f"{function} over {names}: hosts have parameters of their own between two sums, and a mesh over all processes "
        "has room for one value only; or nothing says that the axis goes on over the hosts. Make a mesh of "
        f"jax.local_devices() on every host, and declare its axis: jax_passing.init(axis_name={along.axes[0]!r})."
    )

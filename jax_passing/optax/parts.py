"""Arrays of which each device has a part: `deal` cuts them, `gather` puts them together, `part_specs` places them.

An array of n elements is dealt to N devices in its flat order: device i has the elements from i * c on, with c = n / N
rounded up. So the last parts may end in padding, of fewer than N elements in all.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jax_passing.collective.all_gather import all_gather
from jax_passing.collective.axes import as_axes, extent, is_bound, require_session, span
from jax_passing.collective.known_equal import known_equal
from jax_passing.collective.naming.sites import paths_of
from jax_passing.collective.primitives.buckets import Leaf, make_buckets
from jax_passing.collective.primitives.composed import varying
from jax_passing.errors import ConfigError
from jax_passing.optax.own_update import OwnUpdate

GATHERED_BYTES = 4 << 20  # at once: a layer's parameters shouldn't wait for those of many others

_T = TypeVar("_T")


@partial(jax.tree_util.register_dataclass, data_fields=["array"], meta_fields=["shape"])
@dataclass(frozen=True)
class Part:
    """Stands for a leaf of which each device has a part.

    Attributes:
      array: [c], the elements of this device; outside of the axis [L * c], those of this host's L devices.
      shape: of the whole leaf.
    """

    array: Any
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def is_part(each: Any) -> bool:
    return isinstance(each, Part)


def flattened(tree: Any) -> tuple[list[Any], Any]:
    """Returns the leaves of a tree, of which a Part is one, and its structure."""
    return jax.tree.flatten(tree, is_leaf=is_part)


def with_paths(tree: Any) -> list[tuple[Any, str]]:
    """Returns leaves with their paths; a Part is a leaf."""
    leaves, treedef = flattened(tree)
    return list(zip(leaves, paths_of(treedef.unflatten(list(range(len(leaves))))), strict=True))


def is_dealt(leaf: Any, shapes: frozenset[tuple[int, ...]]) -> bool:
    """Tells whether an array, of parameters or of an optimizer's state, is dealt. `shapes`: those of the parameters."""
    return jnp.issubdtype(leaf.dtype, jnp.inexact) and tuple(leaf.shape) in shapes


def shapes_of(params: Any) -> frozenset[tuple[int, ...]]:
    """Returns the shapes of parameters that are dealt: of those with two elements or more."""
    leaves, _ = flattened(params)
    return frozenset(tuple(leaf.shape) for leaf in leaves if math.prod(leaf.shape) > 1)


class Dealer:
    """Cuts and gathers within the axis.

    Attributes:
      axis_name: as for `psum`.
      axes: the same as a tuple.
      count: the number N of devices along it, on all hosts.
    """

    def __init__(self, axis_name: Any, function: str):
        along = extent(axis_name)
        require_session(along, f"optax.{function}")
        self._span = span(along)
        self.axis_name, self.axes, self.count = axis_name, along.axes, self._span.size

    def index(self) -> jax.Array:
        """Returns int32[], the number of this device's part."""
        return self._span.axis_index()

    def rows(self, array: jax.Array) -> jax.Array:
        """Returns [N, c], all parts of an array."""
        length = -(-array.size // self.count)
        return jnp.pad(array.reshape(-1), (0, length * self.count - array.size)).reshape(self.count, length)

    def cut(self, array: jax.Array) -> jax.Array:
        """Returns [c], this device's part."""
        rows = varying(self.rows(array), self.axes)
        return jax.lax.dynamic_index_in_dim(rows, self.index(), axis=0, keepdims=False)

    def gather(self, parts: Sequence[Part], paths: Sequence[str]) -> list[jax.Array]:
        """Returns whole arrays, in calls of some at a time, the first ones of the model first: the forward pass needs
        these, while the others travel."""
        whole: list[Any] = [None] * len(parts)
        leaves = [
            Leaf(jnp.dtype(part.array.dtype), part.array.nbytes * self.count, path)
            for part, path in zip(parts, paths, strict=True)
        ]
        for bucket in reversed(make_buckets(leaves, GATHERED_BYTES)):
            named = {paths[i]: parts[i].array for i in reversed(bucket)}
            gathered = known_equal(all_gather(named, self.axis_name, tiled=True), self.axis_name)
            for i in bucket:
                whole[i] = gathered[paths[i]][: parts[i].size].reshape(parts[i].shape)
        return whole


def deal(tree: _T, axis_name: Any, mesh: Mesh | None = None, *, params: Any = None) -> _T:
    """Gives each device its part of each array, and lets the rest of it go.

        parts = jax_passing.optax.deal(params, "d", mesh)
        state = jax_passing.optax.deal(restored, "d", mesh, params=params)   # that of the optimizer inside of `sharded`

    Parts are numbered by `axis_index`, so a host has those of its own devices. Arrays of floats with the shape of a
    parameter of two elements or more are dealt; counts and the like stay whole on all devices.

    Args:
      tree: arrays, the same on all devices of all hosts: parameters, or the state of an optimizer.
      axis_name: as for `psum`.
      mesh: that has the axis, where this is called outside of it.
      params: the parameters, or others of their shapes, if `tree` is a state.

    Returns: The same tree, with a `Part` in place of each array that is dealt.

    Raises:
      ConfigError: it is called outside of the axis, without a mesh; or as `psum_scatter` does, in elastic sessions.
      UsageError: there is no session.
    """
    shapes = shapes_of(tree if params is None else params)

    def cut(tree: Any) -> Any:
        dealer = Dealer(axis_name, "deal")
        return jax.tree.map(
            lambda leaf: Part(dealer.cut(leaf), tuple(leaf.shape)) if is_dealt(leaf, shapes) else leaf, tree
        )

    result: _T = within("deal", cut, axis_name, mesh, P(), specs_once_dealt(tree, shapes, axis_name))(tree)
    return result


def gather(tree: _T, axis_name: Any, mesh: Mesh | None = None) -> _T:
    """Gives all devices all of each array that was dealt, bits as they are: what `deal` undoes.

        params = jax_passing.optax.gather(parts, "d")          # in a step: beside the forward pass that needs them
        whole = jax_passing.optax.gather(state, "d", mesh)     # to be saved: as if it had never been dealt

    Args:
      tree: parameters, a state, or, within the axis, updates, that have parts within.
      axis_name: as for `psum`.
      mesh: that has the axis, where this is called outside of it.

    Returns: The same tree, with an array in place of each `Part`: the same on all devices of all hosts.

    Raises: as `deal` does.
    """

    def put_together(tree: Any) -> Any:
        dealer = Dealer(axis_name, "gather")
        leaves, treedef = flattened(tree)
        paths = [path for _, path in with_paths(tree)]
        which = [i for i, leaf in enumerate(leaves) if is_part(leaf)]
        parts = [_as_array(leaves[i]) for i in which]
        for i, array in zip(which, dealer.gather(parts, [paths[i] for i in which]), strict=True):
            leaves[i] = array
        return treedef.unflatten(leaves)

    result: _T = within("gather", put_together, axis_name, mesh, part_specs(tree, axis_name), P())(tree)
    return result


def _as_array(part: Part) -> Part:
    return Part(part.array.own, part.shape) if isinstance(part.array, OwnUpdate) else part


def part_specs(tree: Any, axis_name: Any) -> Any:
    """Returns where the arrays of a tree lie, for `in_specs` and `out_specs` of `shard_map`.

    Args:
      tree: any, such as a `TrainState`, with what `sharded` or `deal` made somewhere in it.
      axis_name: as it was given to these.

    Returns: The same tree, with a PartitionSpec in place of each leaf and each part: along the axis where devices have
      parts of their own, P() where all have the same.
    """
    return jax.tree.map(lambda leaf: P(as_axes(axis_name)) if is_part(leaf) else P(), tree, is_leaf=is_part)


def specs_once_dealt(tree: Any, shapes: frozenset[tuple[int, ...]], axis_name: Any) -> Any:
    """Returns what `part_specs` of a tree is after it has been dealt."""
    return jax.tree.map(lambda leaf: P(as_axes(axis_name)) if is_dealt(leaf, shapes) else P(), tree)


def within(
    function: str, inside: Callable[..., Any], axis_name: Any, mesh: Mesh | None, in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """Returns `inside`, a function of one tree for code within the axis, as it can be called here.

    `function`: the one that the user has called. Raises ConfigError outside of the axis without a mesh.
    """
    if is_bound(axis_name):
        return inside
    if mesh is None:
        raise ConfigError(
            f"{function} over {axis_name!r} is called outside of this axis, so that nothing says how many devices it "
            f"has: give {function} the mesh that the training step has in jax.shard_map, or call it inside."
        )
    mapped = jax.shard_map(inside, mesh=mesh, in_specs=(in_specs,), out_specs=out_specs, check_vma=False)
    return jax.jit(mapped)

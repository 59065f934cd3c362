"""`broadcast` puts the value of one device on all devices of all hosts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive

from jax_passing._compat import named_axes
from jax_passing.collective.axes import Span, extent, require_session, span
from jax_passing.collective.naming.sites import Site
from jax_passing.collective.primitives import composed
from jax_passing.collective.primitives.bits import from_words, to_words
from jax_passing.collective.primitives.bucketed_sum import bucketed_sum
from jax_passing.collective.primitives.operands import without_float0
from jax_passing.errors import ConfigError

_T = TypeVar("_T")


def broadcast(tree: _T, axis_name: Any, *, root: int = 0) -> _T:
    """Gives all devices along `axis_name`, on all hosts, the arrays of the one whose `axis_index` is `root`.

    An axis goes where that of `psum` goes. Bits stay as they are. The root's host sends, the others receive. The
    gradient arrives at the root, as the sum of the cotangents of all devices; others get zeros.

    Args:
      tree: arrays of any shape and dtype; those of the other devices don't matter. Paths, shapes and dtypes must be the
        same on all hosts.
      axis_name: as for `psum`.
      root: an index below `axis_size(axis_name)`, the same on all hosts; 0 in an elastic session.

    Returns:
      A tree of the same structure, shapes and dtypes. Under `shard_map(check_vma=True)` it is equal along the axes.

    Raises:
      ConfigError: there is no such index; and as `psum` does.
      UsageError: a leaf is a random key; or as `psum`, when it is traced.
      NameError: as `psum`.
    """
    along = extent(axis_name)
    if not along.axes:
        return tree
    require_session(along, "broadcast")
    all_devices = span(along)
    is_index = isinstance(root, (int, np.integer)) and not isinstance(root, bool)
    if all_devices.is_elastic:
        if not is_index or root != 0:
            raise ConfigError(f"broadcast from root={root!r}: in an elastic session only device 0 is sure to be there.")
    elif not is_index or not 0 <= root < all_devices.size:
        raise ConfigError(f"broadcast from root={root!r}: expected a Python integer from 0 to {all_devices.size - 1}.")
    sent, whole = without_float0(tree)
    arrays, treedef = composed.operands(sent, along)
    if not arrays:
        return tree
    invariant = named_axes.check_vma() and bool(named_axes.must_vary(along.axes))
    site = composed.site(f"broadcast from {root}", along, sent, arrays)
    results = passing_broadcast_p.bind(
        *arrays, span=all_devices, root=int(root), invariant=invariant, vmapped=False, site=site
    )
    result: _T = whole(jax.tree.unflatten(treedef, results))
    return result


# The primitive: arrays to arrays of the same shapes and dtypes.


def _at_root(array: jax.Array, span: Span, root: int) -> jax.Array:
    return jnp.where(span.axis_index() == root, array, jnp.zeros_like(array))


def _evaluate(*leaves: Any, span: Span, root: int, invariant: bool, vmapped: bool, site: Site) -> list[Any]:
    """Sums what the root gives and the zeros of the others."""
    words = [_at_root(to_words(leaf), span, root) for leaf in leaves]
    sums = bucketed_sum(words, span.along, replace(site, moves="broadcast", rows_inside=span.rows_inside, root=root))
    return [from_words(each, leaf.shape, leaf.dtype) for each, leaf in zip(sums, leaves, strict=True)]


def _transpose(
    cotangents: Sequence[Any], *, span: Span, root: int, invariant: bool, vmapped: bool, site: Site
) -> list[Any]:
    if invariant:  # one value that all share, so its cotangent is complete on every device
        axes = named_axes.must_vary(span.along.axes)
        given = [named_axes.pvary(each, axes - named_axes.varying(jax.typeof(each))) for each in cotangents]
    else:
        given = bucketed_sum(cotangents, span.along, site)
    return [_at_root(cotangent, span, root) for cotangent in given]


def _batch(
    axis_data: Any, leaves: Sequence[Any], dims: Sequence[Any], *, span: Span, root: int, **params: Any
) -> tuple[list[Any], Sequence[Any]]:
    if axis_data.name not in span.along.axes:
        return passing_broadcast_p.bind(*leaves, span=span, root=root, **params), dims
    rest, at = span.without(axis_data.name)
    own = 0
    if root != 0:  # else it is the first along each axis, and an elastic session's sizes aren't known
        indices = [int(index) for index in np.unravel_index(root, span.sizes)]
        own = indices.pop(at)
        root = int(np.ravel_multi_index(indices, rest.sizes)) if indices else 0
    leaves = [
        leaf if dim is None else jax.lax.index_in_dim(leaf, own, axis=dim, keepdims=False)
        for leaf, dim in zip(leaves, dims, strict=True)
    ]
    return passing_broadcast_p.bind(*leaves, span=rest, root=root, **params), [None] * len(leaves)


passing_broadcast_p: Primitive = composed.define(
    "broadcast", result=composed.equal_along, evaluate=_evaluate, batch=_batch, transpose=_transpose
)

"""`pmax` and `pmin` compare over the devices of an axis, on all hosts."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing._compat import jax_collectives
from jax_passing.collective.axes import Span, extent, span
from jax_passing.collective.naming.sites import Site
from jax_passing.collective.primitives import composed
from jax_passing.collective.primitives.bits import from_key, halves, to_key, whole
from jax_passing.collective.primitives.bucketed_sum import bucketed_sum
from jax_passing.collective.primitives.operands import without_float0

_T = TypeVar("_T")


def pmax(tree: _T, axis_name: Any) -> _T:
    """Takes the largest of each element of the arrays of `tree` over the devices along `axis_name`, on all hosts.

    An axis goes where that of `psum` goes. The result is exact. NaN is larger than any number, and +0.0 larger than
    -0.0. There is no gradient.

    Args:
      tree: arrays of any shape, of any dtype but complex ones. Paths, shapes and dtypes must be the same on all hosts.
      axis_name: as for `psum`.

    Returns:
      A tree of the same structure, shapes and dtypes. Under `shard_map(check_vma=True)` it is equal along the axes.

    Raises:
      UsageError: a leaf is complex; or it is differentiated; or as `psum`.
      ConfigError, NameError: as `psum`.
    """
    compared, whole = without_float0(tree)
    result: _T = whole(_extreme(compared, axis_name, largest=True))
    return result


def pmin(tree: _T, axis_name: Any) -> _T:
    """Takes the smallest of each element of the arrays of `tree` over the devices along `axis_name`, on all hosts.

    An axis goes where that of `psum` goes. The result is exact. NaN is less than any number, and -0.0 less than +0.0.
    There is no gradient.

    Args:
      tree: as for `pmax`.
      axis_name: as for `psum`.

    Returns:
      A tree of the same structure, shapes and dtypes. Under `shard_map(check_vma=True)` it is equal along the axes.

    Raises as `pmax` does.
    """
    compared, whole = without_float0(tree)
    result: _T = whole(_extreme(compared, axis_name, largest=False))
    return result


def _extreme(tree: _T, axis_name: Any, largest: bool) -> _T:
    along = extent(axis_name)
    if not along.axes:
        return tree
    if composed.by_jax(along):
        return (jax_collectives.pmax if largest else jax_collectives.pmin)(tree, along.axes)
    arrays, treedef = composed.operands(tree, along)
    if not arrays:
        return tree
    site = composed.site("pmax" if largest else "pmin", along, tree, arrays)
    primitive = passing_pmax_p if largest else passing_pmin_p
    return jax.tree.unflatten(treedef, primitive.bind(*arrays, span=span(along), vmapped=False, site=site))


# The primitives: arrays to arrays of the same shapes and dtypes.


def _evaluate(*leaves: Any, span: Span, site: Site, largest: bool, vmapped: bool) -> list[Any]:
    keys = [to_key(leaf, largest) for leaf in leaves]
    uppers = [key if key.dtype == np.int32 else halves(key)[0] for key in keys]
    greatest = bucketed_sum(uppers, span.along, site, "max")
    # The upper half of 64 bits is decided first, then the lower half among those that have the greatest upper one.
    long = [i for i, key in enumerate(keys) if key.dtype != np.int32]
    lowers = [jnp.where(uppers[i] == greatest[i], halves(keys[i])[1], np.iinfo(np.int32).min) for i in long]
    if long:
        second = replace(site.only(long), function=f"{site.function} of lower halves")
        for i, lower in zip(long, bucketed_sum(lowers, span.along, second, "max"), strict=True):
            greatest[i] = whole(greatest[i], lower)
    return [from_key(key, leaf.dtype, largest) for key, leaf in zip(greatest, leaves, strict=True)]


def _batch(
    axis_data: Any, leaves: Sequence[Any], dims: Sequence[Any], *, span: Span, largest: bool, **params: Any
) -> tuple[list[Any], Sequence[Any]]:
    primitive = passing_pmax_p if largest else passing_pmin_p
    if axis_data.name not in span.along.axes:
        return primitive.bind(*leaves, span=span, **params), dims
    reduce = jnp.max if largest else jnp.min
    reduced = [leaf if dim is None else reduce(leaf, axis=dim) for leaf, dim in zip(leaves, dims, strict=True)]
    return primitive.bind(*reduced, span=span.without(axis_data.name)[0], **params), [None] * len(leaves)


passing_pmax_p, passing_pmin_p = (
    composed.define(
        name,
        result=composed.equal_along,
        evaluate=functools.partial(_evaluate, largest=name == "pmax"),
        batch=functools.partial(_batch, largest=name == "pmax"),
    )
    for name in ("pmax", "pmin")
)

"""`all_gather` and `psum_scatter` go over the devices of an axis, on all hosts. Each is the other's transpose.

Their primitives have the devices as their first dimension; where it comes from and goes to is ordinary JAX.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from numpy.lib.array_utils import normalize_axis_index

from jax_passing._compat import jax_collectives
from jax_passing.collective.axes import Span, extent, require_session, span
from jax_passing.collective.naming.sites import Site, paths_of
from jax_passing.collective.primitives import composed
from jax_passing.collective.primitives.bits import from_words, to_words
from jax_passing.collective.primitives.bucketed_sum import bucketed_rows, bucketed_sum, check_strategy
from jax_passing.collective.primitives.operands import SUPPORTED_DTYPES, summand
from jax_passing.collective.primitives.own_rows import as_words, word_rows
from jax_passing.errors import ConfigError

_SCATTERED_DTYPES = SUPPORTED_DTYPES[1:]  # all but bool

_T = TypeVar("_T")


def all_gather(tree: _T, axis_name: Any, *, axis: int = 0, tiled: bool = False) -> _T:
    """Puts together the arrays of all devices along `axis_name`, on all hosts, in the order of `axis_index`.

    An axis goes where that of `psum` goes. Bits stay as they are. Each host sends its own devices' arrays, and receives
    the others'. The gradient is `psum_scatter` of the cotangents.

    Args:
      tree: arrays of any shape and dtype. Paths, shapes and dtypes must be the same on all hosts.
      axis_name: as for `psum`.
      axis: dimension of each result along which the devices are.
      tiled: the arrays are concatenated along a dimension that they have; else they are stacked along a new one.

    Returns:
      A tree of the same structure and dtypes. Of n devices, shape [a, b] becomes [n, a, b] with `axis=0`, or
      [n * a, b] if `tiled`. Under `shard_map(check_vma=True)` it varies along the axes, as with `jax.lax.all_gather`.

    Raises:
      ValueError: there is no such dimension.
      UsageError: a leaf is a random key; or as `psum`, when it is traced.
      ConfigError, NameError: as `psum`.
    """
    along = extent(axis_name)
    if not along.axes:
        return tree
    if composed.by_jax(along):
        return jax_collectives.all_gather(tree, along.axes, axis=axis, tiled=tiled)
    require_session(along, "all_gather")
    arrays, treedef = composed.operands(tree, along)
    dimensions = [normalize_axis_index(axis, array.ndim if tiled else array.ndim + 1) for array in arrays]
    if not arrays:
        return tree
    site = composed.site("all_gather", along, tree, arrays)
    rows = passing_all_gather_p.bind(*arrays, span=span(along), vmapped=False, site=site)
    gathered = [jnp.moveaxis(row, 0, dimension) for row, dimension in zip(rows, dimensions, strict=True)]
    if tiled:
        gathered = [_merged(array, dimension) for array, dimension in zip(gathered, dimensions, strict=True)]
    return jax.tree.unflatten(treedef, gathered)


def psum_scatter(tree: _T, axis_name: Any, *, scatter_dimension: int = 0, tiled: bool = False) -> _T:
    """Sums over the devices along `axis_name`, on all hosts, and gives each its part, in the order of `axis_index`.

    An axis goes where that of `psum` goes. It is equal to `psum(x, axis_name)[axis_index(axis_name)]`, bits included.
    Each host receives only its own devices' parts. The gradient is `all_gather` of the cotangents.

    Args:
      tree: arrays of the dtypes of `psum` but bool. Paths, shapes and dtypes must be the same on all hosts.
      axis_name: as for `psum`.
      scatter_dimension: which dimension's parts go to the devices.
      tiled: its size is a multiple of the number of devices, and the dimension stays; else it is that number, and the
        dimension goes.

    Returns:
      A tree of the same structure and dtypes. Of n devices, shape [n, a] becomes [a], or [n * a] becomes [a] if
      `tiled`. Under `shard_map(check_vma=True)` it varies along the axes, as with `jax.lax.psum_scatter`.

    Raises:
      ConfigError: a dimension has another size; and as `psum` does.
      UsageError, UnvaryingInputError, NameError: as `psum`; the first one when it is traced.
    """
    along = extent(axis_name)
    if not along.axes:
        return tree
    strategy = check_strategy(None, along)
    if composed.by_jax(along):
        return jax_collectives.psum_scatter(tree, along.axes, scatter_dimension=scatter_dimension, tiled=tiled)
    require_session(along, "psum_scatter")
    leaves, treedef = jax.tree.flatten(tree)
    arrays = [
        summand(leaf, along.axes, "psum_scatter", path, _SCATTERED_DTYPES)
        for leaf, path in zip(leaves, paths_of(tree), strict=True)
    ]
    dimensions = [normalize_axis_index(scatter_dimension, array.ndim) for array in arrays]
    if not arrays:
        return tree
    site = composed.site("psum_scatter", along, tree, arrays, strategy, along.scope.wire_dtype)
    all_devices = span(along)
    rows = [
        jnp.moveaxis(_split(array, dimension, all_devices.size, tiled), dimension, 0)
        for array, dimension in zip(arrays, dimensions, strict=True)
    ]
    sums = passing_psum_scatter_p.bind(*rows, span=all_devices, vmapped=False, site=site)
    return jax.tree.unflatten(treedef, sums)


def _merged(array: jax.Array, dimension: int) -> jax.Array:
    """Reshapes [..., n, m, ...] to [..., n * m, ...]."""
    shape = array.shape
    return array.reshape(*shape[:dimension], shape[dimension] * shape[dimension + 1], *shape[dimension + 2 :])


def _split(array: jax.Array, dimension: int, parts: int, tiled: bool) -> jax.Array:
    """Reshapes [..., parts * m, ...] to [..., parts, m, ...]; what isn't tiled, [..., parts, ...], stays as it is."""
    shape, size = array.shape, array.shape[dimension]
    if size != parts and not (tiled and size % parts == 0):
        raise ConfigError(
            f"psum_scatter of {array.dtype.name}{list(shape)}: dimension {dimension} has size {size}, but there are "
            f"{parts} devices along the axis on all hosts. It must be "
            f"{'a multiple of their number.' if tiled else 'their number, or a multiple with tiled=True.'}"
        )
    return array.reshape(*shape[:dimension], parts, size // parts, *shape[dimension + 1 :]) if tiled else array


# The primitives: [*shape] to [devices, *shape], and back.


def _gathered(aval: Any, *, span: Span, **_: Any) -> Any:
    return aval.update(shape=(span.size, *aval.shape))


def _scattered(aval: Any, **_: Any) -> Any:
    return aval.update(shape=aval.shape[1:])


def _gather(*leaves: Any, span: Span, site: Site, vmapped: bool) -> list[Any]:
    """Sums rows of words: each device gives its own row, and zeros for the others'."""
    zero = np.int32(0)
    index = span.axis_index()
    words = [to_words(leaf) for leaf in leaves]
    mine = [
        jax.lax.dynamic_update_slice(jnp.zeros((span.size, own.size), np.int32), own[None], (index, zero))
        for own in words
    ]
    rows = bucketed_sum(mine, span.along, replace(site, moves="gather", rows_inside=span.rows_inside))
    return [from_words(row, leaf.shape, leaf.dtype) for row, leaf in zip(rows, leaves, strict=True)]


def _scatter(*leaves: Any, span: Span, site: Site, vmapped: bool) -> list[Any]:
    index = span.axis_index()
    sums = bucketed_sum(leaves, span.along, replace(site, moves="scatter", rows_inside=span.rows_inside))
    return [jax.lax.dynamic_index_in_dim(each, index, axis=0, keepdims=False) for each in sums]


# On CPU no row of zeros is made, and no row that nobody asked for (own_rows.py). By other strategies, of which a
# scatter's gradient takes its own, devices are ranks, or no switch may add up.


def _gather_on_cpu(*leaves: Any, span: Span, site: Site, vmapped: bool) -> list[Any]:
    given = [leaf if as_words(leaf) else to_words(leaf) for leaf in leaves]
    wholes = [word_rows(each, span.size) for each in given]
    rows = bucketed_rows(given, wholes, span, replace(site, moves="gather", rows_inside=span.rows_inside))
    return [
        row if as_words(leaf) else from_words(row, leaf.shape, leaf.dtype)
        for row, leaf in zip(rows, leaves, strict=True)
    ]


def _scatter_on_cpu(*leaves: Any, span: Span, site: Site, vmapped: bool) -> list[Any]:
    wholes = [jax.core.ShapedArray(leaf.shape, leaf.dtype) for leaf in leaves]
    return bucketed_rows(leaves, wholes, span, replace(site, moves="scatter", rows_inside=span.rows_inside))


def _batch_gather(
    axis_data: Any, leaves: Sequence[Any], dims: Sequence[Any], *, span: Span, **params: Any
) -> tuple[list[Any], Sequence[Any]]:
    size, name = axis_data.size, axis_data.name
    if name not in span.along.axes:
        rows = passing_all_gather_p.bind(*leaves, span=span, **params)
        return rows, [None if dim is None else dim + 1 for dim in dims]
    rest, at = span.without(name)
    stacked = [
        jnp.broadcast_to(leaf[None], (size, *leaf.shape)) if dim is None else jnp.moveaxis(leaf, dim, 0)
        for leaf, dim in zip(leaves, dims, strict=True)
    ]
    rows = passing_all_gather_p.bind(*stacked, span=rest, **params)
    sizes = rest.sizes
    ordered = [jnp.moveaxis(row.reshape(*sizes, *row.shape[1:]), len(sizes), at) for row in rows]
    return [each.reshape(span.size, *each.shape[len(sizes) + 1 :]) for each in ordered], [None] * len(leaves)


def _batch_scatter(
    axis_data: Any, leaves: Sequence[Any], dims: Sequence[Any], *, span: Span, **params: Any
) -> tuple[list[Any], Sequence[Any]]:
    size, name = axis_data.size, axis_data.name
    if name not in span.along.axes:
        rows = [leaf if dim is None else jnp.moveaxis(leaf, dim, 1) for leaf, dim in zip(leaves, dims, strict=True)]
        sums = passing_psum_scatter_p.bind(*rows, span=span, **params)
        return sums, [None if dim is None else 0 for dim in dims]
    rest, at = span.without(name)
    sums = [
        leaf * np.array(size, leaf.dtype) if dim is None else jnp.sum(leaf, axis=dim, dtype=leaf.dtype)
        for leaf, dim in zip(leaves, dims, strict=True)
    ]
    ordered = [jnp.moveaxis(each.reshape(*span.sizes, *each.shape[1:]), at, len(rest.sizes)) for each in sums]
    rows = [each.reshape(rest.size, size, *each.shape[len(span.sizes) :]) for each in ordered]
    return passing_psum_scatter_p.bind(*rows, span=rest, **params), [0] * len(leaves)


passing_all_gather_p: Primitive = composed.define(
    "all_gather",
    result=_gathered,
    evaluate=_gather,
    evaluate_on_cpu=_gather_on_cpu,
    batch=_batch_gather,
    transpose=lambda cotangents, **params: passing_psum_scatter_p.bind(*cotangents, **params),
)
passing_psum_scatter_p: Primitive = composed.define(
    "psum_scatter",
    result=_scattered,
    evaluate=_scatter,
    evaluate_on_cpu=_scatter_on_cpu,
    batch=_batch_scatter,
    transpose=lambda cotangents, **params: passing_all_gather_p.bind(*cotangents, **params),
)

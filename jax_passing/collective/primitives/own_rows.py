"""The primitive `passing_rows`: a gather or scatter on CPU whose calls bring, or take, the devices' own rows alone.

As a sum a gather adds rows of zeros to a device's own, and a scatter gives all rows back. On CPU, where the calls have
the arrays as XLA has them, neither needs to be there: a result is written once, by the transport, and what is given
stays as it is. Of other hosts the sums and their names don't differ from those that are made of `passing_psum`.

The parameters are `span`, `site`, whose `moves` says which of the two it is, and `wholes`: the types that the leaves
would have in a sum.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jax_passing._compat import jaxprs, named_axes
from jax_passing.collective.axes import Span
from jax_passing.collective.lowering.cpu import emit_rows
from jax_passing.collective.lowering.hosts_sum import lower_in_turn, lower_inside, stays_inside
from jax_passing.collective.naming.sites import Site
from jax_passing.collective.primitives.operands import SUPPORTED_DTYPES

passing_rows_p = Primitive("passing_rows")
passing_rows_p.multiple_results = True

Avals = tuple[jax.core.ShapedArray, ...]


def as_words(leaf: Any) -> bool:
    """Tells whether the bytes of an array are whole words as they are, so that `to_words` is none but another name."""
    return leaf.dtype.name in SUPPORTED_DTYPES and leaf.size * leaf.dtype.itemsize % 4 == 0


def word_rows(leaf: Any, rows: int) -> jax.core.ShapedArray:
    """Returns the type of so many rows like this one, as words."""
    return jax.core.ShapedArray((rows, leaf.size * leaf.dtype.itemsize // 4), np.dtype(np.int32))


def _result(aval: Any, span: Span, site: Site) -> Any:
    shape = (span.size, *aval.shape) if site.moves == "gather" else aval.shape[1:]
    return aval.update(shape=shape, weak_type=False)


def _abstract_eval(*avals: Any, span: Span, site: Site, wholes: Avals) -> tuple[list[Any], set[Any]]:
    effects = {named_axes.NamedAxisEffect(axis) for axis in site.axes}
    return [_result(aval, span, site) for aval in avals], effects


def _lower(ctx: mlir.LoweringRuleContext, *leaves: Any, span: Span, site: Site, wholes: Avals) -> Sequence[Any]:
    if stays_inside(ctx, site):
        return _lower_inside(ctx, leaves, span, site)
    emit = functools.partial(emit_rows, ctx.avals_in, ctx.avals_out)
    return lower_in_turn(emit, ctx.replace(avals_in=wholes), leaves, site, row_avals=ctx.avals_out)


def _lower_inside(ctx: mlir.LoweringRuleContext, leaves: Sequence[Any], span: Span, site: Site) -> Sequence[Any]:
    """Lowers JAX's own sum, where all devices that add up are this process's."""
    gathers = site.moves == "gather"

    def rows_of(own: jax.Array) -> jax.Array:
        rows = jnp.zeros((span.size, *own.shape), own.dtype)
        return jax.lax.dynamic_update_index_in_dim(rows, own, span.axis_index(), 0)

    def row_of(rows: jax.Array) -> jax.Array:
        return jax.lax.dynamic_index_in_dim(rows, span.axis_index(), axis=0, keepdims=False)

    def each(f: Any, values: Sequence[Any], types: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
        own = ctx.replace(primitive=None, avals_in=types, avals_out=results)
        lowered: Sequence[Any] = mlir.lower_fun(lambda *xs: [f(x) for x in xs], multiple_results=True)(own, *values)
        return lowered

    whole = ctx.avals_out if gathers else ctx.avals_in
    if gathers:
        leaves = each(rows_of, leaves, ctx.avals_in, whole)
    inside = ctx.replace(avals_in=whole, avals_out=whole)
    sums = lower_inside(inside, leaves, replace(site, residuals=False))
    return sums if gathers else each(row_of, sums, whole, ctx.avals_out)


jaxprs.summing.add(passing_rows_p)
passing_rows_p.def_effectful_abstract_eval(_abstract_eval)
mlir.register_lowering(passing_rows_p, _lower, cacheable=False)  # nothing binds it for other platforms

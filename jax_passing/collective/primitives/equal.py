"""The primitive `passing_equal` compares what a program takes for equal: arrays to the same arrays.

Nothing in a program shows that its hosts began with different parameters: they print the same loss, and end with
different models. So the first time in a session that the arrays come, all devices of all hosts compare digests of their
bits, by one small sum (xla_ffi/ffi/equality.h); later times cost a call that returns at once. It isn't done on GPUs and
TPUs, where XLA's handlers can't read the arrays.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax_passing._compat import jaxprs, named_axes
from jax_passing.collective.axes import Extent
from jax_passing.collective.lowering.hosts_sum import (
    POSITION,
    carried_of,
    describe,
    group_and_member,
    has_side_effect,
    stays_inside,
)
from jax_passing.collective.lowering.order import INT32, BlockOrder
from jax_passing.collective.naming.sites import Site, type_text
from jax_passing.collective.primitives.bits import element_bits
from jax_passing.collective.primitives.bucketed_sum import summing
from jax_passing.collective.runtime import platforms
from jax_passing.collective.runtime.evaluation import evaluate
from jax_passing.collective.runtime.handlers import register_ffi
from jax_passing.config import RANKS_MAX

passing_equal_p = Primitive("passing_equal")
passing_equal_p.multiple_results = True

_LANES = 4  # of each leaf, and of each rank: equality.h


def compared(arrays: Sequence[Any], along: Extent, site: Site) -> list[Any]:
    """Returns `arrays`, which the program takes for equal on all devices along the axes: where it runs, they are
    compared. `site` is that of the call; its paths name them."""
    if along.over_hosts is None or along.local or along.scope.alone or not along.scope.check_equal:
        return list(arrays)
    results = list(arrays)
    which = [i for i, array in enumerate(arrays) if _has_bits(jax.typeof(array))]
    if which:
        site = replace(site.only(which), function="comparison", strategy="passing", wire_dtype="full")
        given = passing_equal_p.bind(*(arrays[i] for i in which), site=summing(site, along, "max"))
        for i, each in zip(which, given, strict=True):
            results[i] = each
    return results


def _has_bits(aval: Any) -> bool:
    """Tells whether the bytes of such an array are those of its elements: not of random keys, nor where an element is
    less than a byte."""
    dtype = aval.dtype
    return isinstance(dtype, np.dtype) and aval.size > 0 and dtype.itemsize > 0 and element_bits(dtype) >= 8


def _abstract_eval(*avals: Any, site: Site) -> tuple[list[Any], set[Any]]:
    return list(avals), {named_axes.NamedAxisEffect(axis) for axis in site.axes}


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[list[Any], list[Any]]:
    return passing_equal_p.bind(*primals, **params), list(tangents)


def _transpose(cotangents: Sequence[Any], *leaves: Any, **_: Any) -> list[Any]:
    # A cast in a rule of jax.custom_jvp is given tangents.
    return [ct if ad.is_undefined_primal(leaf) else None for ct, leaf in zip(cotangents, leaves, strict=True)]


def _batch(axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], *, site: Site) -> Any:
    site = replace(site, axes=tuple(axis for axis in site.axes if axis != axis_data.name))
    return passing_equal_p.bind(*operands, site=site), dims


def _lower(ctx: mlir.LoweringRuleContext, *leaves: Any, site: Site) -> Sequence[Any]:
    if not stays_inside(ctx, site) and carried_of(ctx):
        _emit(ctx, leaves, site)
    return leaves


def _emit(ctx: mlir.LoweringRuleContext, leaves: Sequence[Any], site: Site) -> None:
    register_ffi()
    names = [f"{path} {type_text(aval)}".strip() for path, aval in zip(site.paths, ctx.avals_in, strict=True)]
    lanes = _LANES * (len(leaves) + (site.world_size or RANKS_MAX))
    spec = replace(describe(ctx, site), dtype="int32", wire_dtype="full", leaf_elements=(lanes,))
    turn = BlockOrder.of(ctx).enter(ctx, site, 0)
    call = jax.ffi.ffi_lowering("passing_equal", has_side_effect=has_side_effect(ctx))
    own = ctx.replace(avals_in=[POSITION, INT32, *ctx.avals_in], avals_out=[INT32])
    operands = [group_and_member(ctx, site.axes), turn.before, *leaves]
    text = "\n".join(name.replace("\n", " ") for name in names)
    (after,) = call(own, *operands, spec=spec.encode(), leaves=text)
    turn.order.leave(turn, after, ())


def _leave(ctx: mlir.LoweringRuleContext, *leaves: Any, **_: Any) -> Sequence[Any]:
    return leaves


jaxprs.summing.add(passing_equal_p)
passing_equal_p.def_impl(functools.partial(evaluate, passing_equal_p))
passing_equal_p.def_effectful_abstract_eval(_abstract_eval)
ad.primitive_jvps[passing_equal_p] = _jvp
ad.primitive_transposes[passing_equal_p] = _transpose
batching.fancy_primitive_batchers[passing_equal_p] = _batch
platforms.register_lowering(passing_equal_p, cpu=_lower, cuda=_leave, tpu=_leave)

"""The primitives of sums that are started in one place and finished in another, and their rules.

- `passing_psum_start`: leaves of one bucket to the token of their sum, which goes on by itself.
- `passing_keep`: leaves to a token as well, without a sum.
- `passing_take`: the token of either to its leaves.

A token is a float32[], the same on all devices; 0 stands for zeros. All maps are linear, so the tangent of a token is
the token of the tangents, and backward passes have tokens too. A start and its take transpose to a start and its take:
the sum of the cotangents travels between them. Under `shard_map(check_vma=True)` the transpose of a sum is a cast, so
there they transpose to `passing_keep` and its take: nothing travels.

Parameters: `site`, as of `passing_psum`; for the start `invariant` (its sum's transpose is a cast); for `passing_take`
`types` (of the leaves) and `summed_back` (whether it transposes to a sum, or to `passing_keep`).
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from jax_passing._compat import jaxprs, named_axes
from jax_passing.collective.lowering.handles import lower_keep, lower_start, lower_take, refuse
from jax_passing.collective.naming.sites import Site
from jax_passing.collective.primitives.passing_psum import LOSS, cast_back, check_not_vmapped, sum_batch
from jax_passing.collective.runtime import platforms
from jax_passing.collective.runtime.evaluation import evaluate

passing_psum_start_p = Primitive("passing_psum_start")
passing_keep_p = Primitive("passing_keep")
passing_take_p = Primitive("passing_take")
passing_take_p.multiple_results = True


class LeafType(NamedTuple):
    """The type of a leaf: `varying` are the mesh axes along which it differs from device to device, if types say so."""

    shape: tuple[int, ...]
    dtype: np.dtype
    varying: tuple[Any, ...] = ()

    @classmethod
    def of(cls, aval: Any, axes: Iterable[Any] = ()) -> "LeafType":
        """Returns the type of a leaf's sum over `axes`."""
        return cls(aval.shape, aval.dtype, tuple(sorted(named_axes.varying(aval).difference(axes))))

    @property
    def has_tangent(self) -> bool:
        return bool(jnp.issubdtype(self.dtype, jnp.inexact))


def start(leaves: Sequence[Any], site: Site, *, invariant: bool) -> Any:
    """Returns the token of the sum of these leaves, all of one dtype."""
    return passing_psum_start_p.bind(*leaves, site=site, invariant=invariant)


def keep(leaves: Sequence[Any], site: Site) -> Any:
    """Returns the token of these leaves."""
    return passing_keep_p.bind(*leaves, site=site)


def take(token: Any, types: Sequence[LeafType], site: Site, *, summed_back: bool, after: Sequence[Any] = ()) -> Any:
    """Returns the leaves of a token, when those of `after` are there."""
    return passing_take_p.bind(token, *after, types=tuple(types), summed_back=summed_back, site=site)


# Types.


def _type_of_start(*avals: Any, site: Site, **_: Any) -> tuple[Any, set[Any]]:
    for axis in site.axes:
        named_axes.axis_size(axis)
    named_axes.check_types(avals, site.axes, passing_psum_start_p.name)
    return named_axes.type_here((), np.dtype(np.float32)), {named_axes.NamedAxisEffect(axis) for axis in site.axes}


def _type_of_keep(*_: Any, **__: Any) -> Any:
    return named_axes.type_here((), np.dtype(np.float32))


def _types_of_take(_: Any, *__: Any, types: Sequence[LeafType], **___: Any) -> list[Any]:
    return [named_axes.type_here(*each) for each in types]


# Derivatives.


def _instantiated(tangents: Sequence[Any]) -> list[Any] | None:
    """Returns the tangents; None if all are zero, as those of integers are."""
    if all(type(tangent) is ad.Zero for tangent in tangents):
        return None
    return [ad.instantiate_zeros(tangent) for tangent in tangents]


def _token_jvp(
    primitive: Primitive, primals: Sequence[Any], tangents: Sequence[Any], *, site: Site, **params: Any
) -> tuple[Any, Any]:
    if primitive is passing_psum_start_p:
        check_not_vmapped("psum_start", site.vmapped > 0, site.world_size)
    token = primitive.bind(*primals, site=site, **params)
    moving = _instantiated(tangents)
    if moving is None:
        return token, ad.Zero(jax.typeof(token).to_tangent_aval())
    return token, primitive.bind(*moving, site=site.only(range(len(site.paths)), "j"), **params)


def _take_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, types: Sequence[LeafType], site: Site, **params: Any
) -> tuple[Any, Any]:
    taken = passing_take_p.bind(*primals, types=types, site=site, **params)
    token = tangents[0]
    if type(token) is ad.Zero or not types[0].has_tangent:
        return taken, [ad.Zero(jax.typeof(each).to_tangent_aval()) for each in taken]
    site = site.only(range(len(site.paths)), "j")
    return taken, passing_take_p.bind(token, types=types, site=site, **params)


def _transpose_of_start(cotangent: Any, *leaves: Any, site: Site, invariant: bool) -> list[Any]:
    linear = [ad.is_undefined_primal(leaf) for leaf in leaves]
    if type(cotangent) is ad.Zero:
        return [
            ad.Zero(leaf.aval.to_ct_aval()) if is_linear else None
            for leaf, is_linear in zip(leaves, linear, strict=True)
        ]
    site = site.only(range(len(site.paths)), "t")
    axes = site.axes if named_axes.check_vma() else ()
    types = [LeafType.of(leaf.aval, axes) for leaf in leaves]
    taken = take(cotangent, types, site, summed_back=not invariant)
    if invariant:
        taken = cast_back(taken, site)
    return [each if is_linear else None for each, is_linear in zip(taken, linear, strict=True)]


def _transpose_of_keep(cotangent: Any, *leaves: Any, site: Site) -> list[Any]:
    if type(cotangent) is ad.Zero:
        return [ad.Zero(leaf.aval.to_ct_aval()) for leaf in leaves]
    site = site.only(range(len(site.paths)), "t")
    taken: list[Any] = take(cotangent, [LeafType.of(leaf.aval) for leaf in leaves], site, summed_back=False)
    return taken


def _transpose_of_take(
    cotangents: Sequence[Any], token: Any, *others: Any, types: Sequence[LeafType], summed_back: bool, site: Site
) -> list[Any]:
    rest = [ad.Zero(other.aval.to_ct_aval()) if ad.is_undefined_primal(other) else None for other in others]
    moving = _instantiated(cotangents)
    if moving is None:
        return [ad.Zero(token.aval.to_ct_aval()), *rest]
    if not summed_back:
        return [keep(moving, site.only(range(len(site.paths)), "t")), *rest]
    step = LOSS if all(map(jaxprs.is_constant, moving)) else "t"
    return [start(moving, site.only(range(len(site.paths)), step), invariant=False), *rest]


# vmap: a token stands for all elements. It is the same for each of them.


def _batched_token(token: Any, size: int) -> tuple[Any, int]:
    return jnp.broadcast_to(token, (size,)), 0


def _in_front(leaves: Sequence[Any], dims: Sequence[Any], size: int) -> list[Any]:
    return [batching.bdim_at_front(leaf, dim, size) for leaf, dim in zip(leaves, dims, strict=True)]


def _batch_start(axis_data: Any, leaves: Sequence[Any], dims: Sequence[Any], *, site: Site, invariant: bool) -> Any:
    if axis_data.name in site.axes:
        leaves, site = sum_batch(axis_data, leaves, dims, site)
        return start(leaves, site, invariant=invariant), None
    token = start(_in_front(leaves, dims, axis_data.size), site, invariant=invariant)
    return _batched_token(token, axis_data.size)


def _batch_keep(axis_data: Any, leaves: Sequence[Any], dims: Sequence[Any], *, site: Site) -> Any:
    return _batched_token(keep(_in_front(leaves, dims, axis_data.size), site), axis_data.size)


def _batch_take(
    axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], *, types: Sequence[LeafType], **params: Any
) -> tuple[Any, list[Any]]:
    token, *others = operands
    if dims[0] is None:
        return passing_take_p.bind(token, *others, types=types, **params), [None] * len(types)
    size = axis_data.size
    types = tuple(each._replace(shape=(size, *each.shape)) for each in types)
    one = jax.lax.index_in_dim(token, 0, dims[0], keepdims=False)
    # A branch may have made a handle for some elements alone, and stacked handles differ: NaN is refused when it runs.
    one = jnp.where(jax.lax.stop_gradient(jnp.all(token == one)), one, np.float32(np.nan))
    return passing_take_p.bind(one, *others, types=types, **params), [0] * len(types)


for _primitive, _lower, _transpose, _batch in (
    (passing_psum_start_p, lower_start, _transpose_of_start, _batch_start),
    (passing_keep_p, lower_keep, _transpose_of_keep, _batch_keep),
    (passing_take_p, lower_take, _transpose_of_take, _batch_take),
):
    _primitive.def_impl(functools.partial(evaluate, _primitive))
    ad.primitive_transposes[_primitive] = _transpose
    batching.fancy_primitive_batchers[_primitive] = _batch
    platforms.register_lowering(_primitive, cpu=_lower, cuda=refuse, tpu=refuse)
jaxprs.summing.add(passing_psum_start_p)
passing_psum_start_p.def_effectful_abstract_eval(_type_of_start)
passing_keep_p.def_abstract_eval(_type_of_keep)
passing_take_p.def_abstract_eval(_types_of_take)
for _primitive in (passing_psum_start_p, passing_keep_p):
    ad.primitive_jvps[_primitive] = functools.partial(_token_jvp, _primitive)
ad.primitive_jvps[passing_take_p] = _take_jvp

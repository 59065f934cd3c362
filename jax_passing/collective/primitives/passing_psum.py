"""The primitives `passing_psum` and `passing_psum_invariant`, and their rules.

Both take the leaves of one bucket (all of one dtype) and return their sums. The second is the form of
`shard_map(check_vma=True)`, whose result is invariant over the axes; they differ in their types and transposes, like
JAX's own `psum` and `psum_invariant`.

The only parameter is `site`, the call (naming/sites.py).
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from jax_passing._compat import jaxprs, named_axes
from jax_passing.collective.axes import Extent
from jax_passing.collective.lowering.by_host_calls import lower_by_host_calls
from jax_passing.collective.lowering.cpu import lower
from jax_passing.collective.lowering.gpu.start_and_done import lower_on_gpu
from jax_passing.collective.naming.sites import Site
from jax_passing.collective.runtime import platforms
from jax_passing.collective.runtime.evaluation import evaluate
from jax_passing.errors import UsageError
from jax_passing.host import scope as scopes

passing_psum_p = Primitive("passing_psum")
passing_psum_invariant_p = Primitive("passing_psum_invariant")
passing_pvary_p = Primitive("passing_pvary")  # the transpose of the second; its rules are in pvary.py
passing_pvary_p.multiple_results = True


# Types.


def _abstract_eval(primitive: Primitive, *avals: Any, site: Site) -> tuple[list[Any], set[Any]]:
    for axis in site.axes:
        named_axes.axis_size(axis)
    named_axes.check_types(avals, site.axes, primitive.name)
    own = [aval.update(weak_type=False) for aval in avals]  # as lax.psum, which keeps weak types only under check_vma
    sums = own
    if primitive is passing_psum_invariant_p:
        sums = [named_axes.without_varying(aval, site.axes) for aval in avals]
    kept = () if not site.residuals else own if residuals_vary(site) else sums
    return [*sums, *kept], {named_axes.NamedAxisEffect(axis) for axis in site.axes}


def residuals_vary(site: Site) -> bool:
    """Tells whether residuals differ along the axes of a mesh: they belong to what is one rank at the switch."""
    return site.device_ranks > 0 or (site.over_hosts is False and jax.process_count() > 1)


# Derivatives: the map is linear. Only leaves whose tangent isn't zero travel.


def check_not_vmapped(name: str, vmapped: bool, world_size: int | None) -> None:
    """Refuses what is equal in all elements of a vmap: JAX sums its gradient outside of it, over this host only."""
    if vmapped and world_size != 1:
        raise UsageError(
            f"{name} over an axis of vmap that continues over the hosts is differentiated from outside of the vmap, "
            "where JAX would sum gradients only over this host's elements. Take the gradient inside the function that "
            "is mapped: jax.vmap(lambda x: jax.grad(loss)(x), axis_name=...)."
        )


def linear_jvp(
    primitive: Primitive, primals: Sequence[Any], tangents: Sequence[Any], *, site: Site, **params: Any
) -> tuple[list[Any], list[Any]]:
    """The rule for tangents of a primitive that maps each leaf linearly to a result."""
    results = primitive.bind(*primals, site=site, **params)
    moving = [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    result_tangents: list[Any] = [ad.Zero(jax.typeof(each).to_tangent_aval()) for each in results]
    if moving:
        theirs = primitive.bind(*(tangents[i] for i in moving), site=site.only(moving, "j"), **params)
        for i, tangent in zip(moving, theirs, strict=True):
            result_tangents[i] = tangent
    return results, result_tangents


def _jvp(primitive: Primitive, primals: Sequence[Any], tangents: Sequence[Any], *, site: Site) -> Any:
    check_not_vmapped("psum", site.vmapped > 0, site.world_size)
    if site.residuals:
        if any(type(tangent) is not ad.Zero for tangent in tangents):
            raise _no_gradient(site)
        results = primitive.bind(*primals, site=site)
        return results, [ad.Zero(jax.typeof(each).to_tangent_aval()) for each in results]
    if site.op != "sum":
        raise UsageError("pmax and pmin can't be differentiated; jax.lax.pmax can't be, either.")
    return linear_jvp(primitive, primals, tangents, site=site)


def _no_gradient(site: Site) -> UsageError:
    return UsageError(
        f"psum_with_residuals at {site.location} can't be differentiated, as rounding has no gradient: use it behind "
        "the gradient, or put jax.lax.stop_gradient around its operand if the gradient may ignore it."
    )


LOSS = "tc"  # the transpose of a sum that is the loss itself: its cotangent is a constant


def _transpose(primitive: Primitive, cotangents: Sequence[Any], *leaves: Any, site: Site) -> list[Any]:
    if site.residuals:
        raise _no_gradient(site)
    moving = [i for i, cotangent in enumerate(cotangents) if type(cotangent) is not ad.Zero]
    result: list[Any] = [ad.Zero(leaf.aval.to_ct_aval()) if ad.is_undefined_primal(leaf) else None for leaf in leaves]
    given = [cotangents[i] for i in moving]
    if primitive is passing_psum_invariant_p:
        # The sum is one value that every device and host shares, so its cotangent is each one's own.
        given = cast_back(given, site.only(moving, "t"))
    elif given:
        # Each device has a sum of its own, equal by chance: their cotangents add up, as those of lax.psum do.
        step = LOSS if all(map(jaxprs.is_constant, given)) else "t"
        given = primitive.bind(*given, site=site.only(moving, step))
    for i, cotangent in zip(moving, given, strict=True):
        result[i] = cotangent if ad.is_undefined_primal(leaves[i]) else None
    return result


def cast_back(cotangents: list[Any], site: Site) -> list[Any]:
    """Returns the cotangents of what was summed at `site`, where those of the sums are the same on all devices."""
    if named_axes.check_vma():
        return [named_axes.pvary(cotangent, named_axes.must_vary(site.axes)) for cotangent in cotangents]
    along = Extent(site.axes, site.over_hosts, scopes.current() or scopes.Scope())
    vmapped = site.vmapped > 0
    cast: list[Any] = passing_pvary_p.bind(*cotangents, along=along, vmapped=vmapped, of_sums=False, site=site)
    return cast


# vmap.


def declared_here(axis: Any, over_hosts: bool | None) -> bool:
    """Returns whether this is the axis that continues over the hosts."""
    scope = scopes.current()
    return bool(over_hosts) and scope is not None and axis in scope.axis_names


def sum_batch(axis_data: Any, leaves: Sequence[Any], dims: Sequence[Any], site: Site) -> tuple[list[Any], Site]:
    """Carries out a sum over a vmap's axis, one of the site's. Returns its results, and the site of what is left."""
    if site.op == "max":
        given = [leaf if dim is None else jnp.max(leaf, axis=dim) for leaf, dim in zip(leaves, dims, strict=True)]
    else:
        given = [
            leaf * np.array(axis_data.size, leaf.dtype) if dim is None else jnp.sum(leaf, axis=dim, dtype=leaf.dtype)
            for leaf, dim in zip(leaves, dims, strict=True)
        ]
    if declared_here(axis_data.name, site.over_hosts):
        site = replace(site, vmapped=axis_data.size)  # all hosts must have as many elements
    return given, replace(site, axes=tuple(axis for axis in site.axes if axis != axis_data.name))


def _batch(
    primitive: Primitive, axis_data: Any, leaves: Sequence[Any], dims: Sequence[Any], *, site: Site
) -> tuple[Sequence[Any], Sequence[Any]]:
    if axis_data.name not in site.axes:
        return primitive.bind(*leaves, site=site), [*dims, *dims] if site.residuals else dims
    given, site = sum_batch(axis_data, leaves, dims, site)
    results = primitive.bind(*given, site=site)
    # Each element of the vmap counts as a device, which gets its part of the residual.
    count = len(given)
    kept = [each / np.array(axis_data.size, each.dtype) for each in results[count:]]
    return [*results[:count], *kept], [None] * len(results)


for _primitive in (passing_psum_p, passing_psum_invariant_p):
    _primitive.multiple_results = True
    jaxprs.summing.add(_primitive)
    _primitive.def_impl(functools.partial(evaluate, _primitive))
    _primitive.def_effectful_abstract_eval(functools.partial(_abstract_eval, _primitive))
    ad.primitive_jvps[_primitive] = functools.partial(_jvp, _primitive)
    ad.primitive_transposes[_primitive] = functools.partial(_transpose, _primitive)
    batching.fancy_primitive_batchers[_primitive] = functools.partial(_batch, _primitive)
    platforms.register_lowering(_primitive, cpu=lower, cuda=lower_on_gpu, tpu=lower_by_host_calls)

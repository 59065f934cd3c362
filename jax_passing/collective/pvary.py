"""`pvary` casts from equal to varying, and its transpose sums over all devices and hosts.

It is the dual of `psum`, as `jax.lax.pcast(..., to="varying")` is that of `jax.lax.psum`. The forward pass does
nothing; the backward pass sums the cotangents of all leaves, in buckets, each as soon as it is complete.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from jax_passing._compat import jaxprs, named_axes
from jax_passing.collective.axes import Axes, Extent, extent
from jax_passing.collective.naming.sites import Site, new_site, paths_of
from jax_passing.collective.primitives.bucketed_sum import (
    bucketed_sum,
    check_bucket_bytes,
    check_strategy,
    check_wire_dtype,
    is_number,
)
from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES
from jax_passing.collective.primitives.equal import compared
from jax_passing.collective.primitives.jax_rules import transposed_by_shard_map
from jax_passing.collective.primitives.passing_psum import (
    LOSS,
    check_not_vmapped,
    declared_here,
    linear_jvp,
    passing_pvary_p,
)
from jax_passing.errors import ConfigError, UsageError

_T = TypeVar("_T")


def pvary(
    tree: _T,
    axis_name: Any,
    *,
    strategy: str | None = None,
    wire_dtype: str | None = None,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> _T:
    """Casts arrays that are equal on all devices along `axis_name` to ones that may differ there.

    An axis goes where that of `psum` goes. The gradient with respect to what was cast is summed over all devices of
    all hosts:

        def loss(params, batch): return model(jax_passing.pvary(params, "d"), batch)
        grads = jax.grad(loss)(params, batch)     # the sum, on every host; don't sum it again

    Args:
      tree: arrays of any shape and dtype, equal on all devices along the axes, on all hosts; Python numbers stay.
        `jax.lax.pcast(x, axis, to="varying")` casts those of which each host has its own, such as residuals.
        Under `check_vma=False` nothing that comes from a `psum` which is differentiated as well: the gradient of either
        would add up all devices.
      axis_name: as for `psum`.
      strategy: how the gradients are summed, as for `psum`.
      wire_dtype: how they travel, as for `psum`.
      bucket_bytes: how many of them are summed together, as for `psum`.

    Returns:
      A tree of the same structure, values, shapes and dtypes. Under `shard_map(check_vma=True)` it varies along the
      axes.

    Raises:
      ConfigError: a leaf varies already; and as `psum` does.
      UsageError: as `psum`; or when the gradient is taken where JAX would sum it once more (outside of
        `shard_map(check_vma=False)`, pmap or vmap).
      NameError: as `psum`.
      ProgramMismatchError: when it first runs in a session, devices or hosts hold different bits
        (`init(check_equal=...)`).
    """
    check_bucket_bytes(bucket_bytes)
    along = extent(axis_name)
    wanted = check_strategy(strategy, along)
    wire_dtype = check_wire_dtype(wire_dtype, along, wanted)
    leaves, treedef = jax.tree.flatten(tree)
    indices = [i for i, leaf in enumerate(leaves) if not is_number(leaf)]
    arrays = [jnp.asarray(leaves[i]) for i in indices]
    _check_equal(arrays, along.axes)
    if not along.axes or not arrays:
        return tree
    if along.local and along.suits_jax and named_axes.check_vma():  # else JAX's does nothing
        cast = [named_axes.pvary(array, named_axes.must_vary(along.axes)) for array in arrays]
    else:
        paths = paths_of(tree)
        site = new_site(along.scope.stream, wanted, bucket_bytes, [paths[i] for i in indices], wire_dtype=wire_dtype)
        of_sums = not named_axes.check_vma() and any(jaxprs.derivative_has_sums(leaves[i]) for i in indices)
        cast = passing_pvary_p.bind(*arrays, along=along, vmapped=False, of_sums=of_sums, site=site)
        cast = compared(cast, along, site)
    for index, array in zip(indices, cast, strict=True):
        leaves[index] = array
    return jax.tree.unflatten(treedef, leaves)


def _check_equal(arrays: Sequence[Any], axes: Axes) -> None:
    if not named_axes.check_vma():
        return
    for array in arrays:
        if common := named_axes.must_vary(axes) & named_axes.varying(jax.typeof(array)):
            raise ConfigError(
                f"pvary over {axes} of {jax.typeof(array)}, which differs from device to device along "
                f"{', '.join(map(repr, sorted(common)))} already: cast the parameters before anything else is done."
            )


# The primitive: arrays to the same arrays.


def _abstract_eval(*avals: Any, along: Extent, **_: Any) -> tuple[list[Any], set[Any]]:
    names = named_axes.must_vary(along.axes) if named_axes.check_vma() else frozenset()
    return [named_axes.with_varying(aval, names) for aval in avals], {named_axes.NamedAxisEffect(a) for a in along.axes}


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, site: Site, **params: Any) -> Any:
    check_not_vmapped("pvary", params["vmapped"], params["along"].scope.world_size)
    return linear_jvp(passing_pvary_p, primals, tangents, site=site, **params)


def _transpose(
    cotangents: Sequence[Any], *leaves: Any, along: Extent, site: Site, vmapped: bool, of_sums: bool
) -> list[Any]:
    if of_sums:
        raise UsageError(
            f"jax_passing.pvary casts at {site.location} what comes from a sum over the same devices. Under "
            "check_vma=False the gradient of that sum adds up all devices' cotangents already, and each would count "
            "several times: leave out the cast, or use check_vma=True."
        )
    if not named_axes.check_vma() and any(jaxprs.comes_from(ct, _is_loss) for ct in cotangents):
        raise UsageError(
            f"the loss whose gradient reaches what jax_passing.pvary cast at {site.location} is itself a psum or "
            "pmean. Under check_vma=False each device's loss counts, and all of them are that sum: the gradient would "
            "come out once for each device. Differentiate the device's own loss (divided by jax_passing.axis_size for "
            "a mean) and sum it outside of jax.grad, or its auxiliary output; or use check_vma=True."
        )
    if transposed_by_shard_map():
        raise UsageError(
            f"the gradient of what jax_passing.pvary cast at {site.location} is taken from outside of "
            "shard_map(check_vma=False) or pmap, where JAX sums it over the devices once more. Take the gradient "
            "inside the mapped function, or use check_vma=True."
        )
    linear = [i for i, leaf in enumerate(leaves) if ad.is_undefined_primal(leaf)]
    # A leaf that only some hosts use must be summed by all, so those that nobody uses here take part as zeros.
    given = [ad.instantiate_zeros(cotangents[i]) for i in linear]
    result: list[Any] = [None] * len(leaves)
    site = site.only(linear, "t")
    if site.strategy == "native" and not named_axes.check_vma():  # lax.psum would be transposed to a sum once more
        site = replace(site, strategy="passing")
    for i, total in zip(linear, bucketed_sum(given, along, site, of_casts=True), strict=True):
        result[i] = total
    return result


def _is_loss(equation: Any) -> bool:
    site = equation.params.get("site")
    return isinstance(site, Site) and site.kind.endswith(LOSS)


def _batch(axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], *, along: Extent, **params: Any) -> Any:
    if axis_data.name in along.axes:
        if any(dim is not None for dim in dims):
            raise ConfigError(
                f"pvary over {along.axes} of values that differ along the axis {axis_data.name!r} of vmap: leave them "
                "out of in_axes (None), as they are equal."
            )
        if declared_here(axis_data.name, along.over_hosts):
            params["vmapped"] = True
        along = along._replace(axes=tuple(axis for axis in along.axes if axis != axis_data.name))
    return passing_pvary_p.bind(*operands, along=along, **params), dims


def _evaluate(*operands: Any, **_: Any) -> list[Any]:
    return list(operands)


passing_pvary_p.def_impl(_evaluate)
passing_pvary_p.def_effectful_abstract_eval(_abstract_eval)
ad.primitive_jvps[passing_pvary_p] = _jvp
ad.primitive_transposes[passing_pvary_p] = _transpose
batching.fancy_primitive_batchers[passing_pvary_p] = _batch
mlir.register_lowering(passing_pvary_p, lambda ctx, *operands, **_: operands)

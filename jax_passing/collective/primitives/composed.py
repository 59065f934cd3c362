"""Primitives that are made of sums and maxima when they are lowered, but are differentiated and batched as a whole.

What travels are integers, of which JAX knows no derivative: so a primitive stands for all of it until then. Each takes
the leaves of one call and has a result for each; its parameters are `span` (over which devices it goes), `vmapped` (the
axis that continues over the hosts was one of vmap, and is a dimension already), `site`, and what it needs beside these.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax_passing._compat import jaxprs, named_axes
from jax_passing.collective.axes import Extent, Span
from jax_passing.collective.naming.sites import Site, new_site, paths_of, type_text
from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES
from jax_passing.collective.primitives.passing_psum import check_not_vmapped, declared_here, linear_jvp
from jax_passing.collective.runtime import platforms
from jax_passing.collective.runtime.evaluation import evaluate as run_alone
from jax_passing.errors import UsageError

Arrays = list[Any]


def define(
    name: str,
    *,
    result: Callable[..., Any],
    evaluate: Callable[..., Arrays],
    batch: Callable[..., tuple[Arrays, Sequence[Any]]],
    transpose: Callable[..., Arrays] | None = None,
    evaluate_on_cpu: Callable[..., Arrays] | None = None,
) -> Primitive:
    """A primitive that maps each leaf by itself.

    Args:
      name: "all_gather": of the function, and behind "passing_" of the primitive.
      result: (type of a leaf, **parameters) to the type of its result.
      evaluate: (*leaves, **parameters) to the results, made of other primitives.
      batch: (axis_data, leaves, dims, **parameters), as JAX's rule; `vmapped` says already what it is afterwards.
      transpose: (cotangents, **parameters), of some of the leaves, to those of the leaves; None: there is no gradient.
      evaluate_on_cpu: in place of `evaluate`, for CPU devices, by strategy `passing`.
    """
    primitive = Primitive(f"passing_{name}")
    primitive.multiple_results = True
    jaxprs.summing.add(primitive)

    def abstract_eval(*avals: Any, span: Span, **params: Any) -> tuple[list[Any], set[Any]]:
        for axis in span.along.axes:
            named_axes.axis_size(axis)
        named_axes.check_types(avals, span.along.axes, name)
        effects = {named_axes.NamedAxisEffect(axis) for axis in span.along.axes}
        return [result(aval, span=span, **params).update(weak_type=False) for aval in avals], effects

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], *, site: Site, **params: Any) -> Any:
        moving = [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
        if moving and transpose is None:
            raise UsageError(
                f"{name} at {site.location} can't be differentiated, as jax.lax.{name} can't: put "
                "jax.lax.stop_gradient around its operand if the gradient may ignore it."
            )
        if moving:
            check_not_vmapped(name, params["vmapped"], params["span"].along.scope.world_size)
        return linear_jvp(primitive, primals, tangents, site=site, **params)

    def transpose_rule(cotangents: Sequence[Any], *leaves: Any, site: Site, **params: Any) -> list[Any]:
        assert transpose is not None
        moving = [i for i, ct in enumerate(cotangents) if type(ct) is not ad.Zero and ad.is_undefined_primal(leaves[i])]
        given: list[Any] = [
            ad.Zero(leaf.aval.to_ct_aval()) if ad.is_undefined_primal(leaf) else None for leaf in leaves
        ]
        if moving:
            theirs = transpose([cotangents[i] for i in moving], site=site.only(moving, "t"), **params)
            for i, cotangent in zip(moving, theirs, strict=True):
                given[i] = cotangent
        return given

    def lower(ctx: mlir.LoweringRuleContext, *leaves: Any, site: Site, **params: Any) -> Sequence[Any]:
        chosen = evaluate
        if evaluate_on_cpu is not None and site.strategy == "passing" and platforms.by_ffi_on_cpu(ctx):
            chosen = evaluate_on_cpu
        # An empty array has nothing to send, and jaxlib 0.11.2 dies of some operations on one.
        avals_in: Sequence[Any] = ctx.avals_in
        avals_out: Sequence[Any] = ctx.avals_out
        carried = [i for i, aval in enumerate(avals_in) if aval.size > 0]

        def evaluate_carried(*leaves: jax.Array) -> Arrays:
            results: Arrays = [jnp.zeros(aval.shape, aval.dtype) if aval.size == 0 else None for aval in avals_out]
            if carried:
                given = chosen(*(leaves[i] for i in carried), site=site.only(carried), **params)
                for i, each in zip(carried, given, strict=True):
                    results[i] = each
            return results

        lowered: Sequence[Any] = mlir.lower_fun(evaluate_carried, multiple_results=True)(ctx, *leaves)
        return lowered

    def batch_rule(
        axis_data: Any, leaves: Sequence[Any], dims: Sequence[Any], *, span: Span, vmapped: bool, **params: Any
    ) -> tuple[Arrays, Sequence[Any]]:
        along = span.along
        vmapped = vmapped or (axis_data.name in along.axes and declared_here(axis_data.name, along.over_hosts))
        return batch(axis_data, leaves, dims, span=span, vmapped=vmapped, **params)

    primitive.def_impl(functools.partial(run_alone, primitive))
    primitive.def_effectful_abstract_eval(abstract_eval)
    ad.primitive_jvps[primitive] = jvp
    if transpose is not None:
        ad.primitive_transposes[primitive] = transpose_rule
    batching.fancy_primitive_batchers[primitive] = batch_rule
    # Each call is lowered by itself: with JAX's cache, equal calls would share their sums' sites.
    mlir.register_lowering(primitive, lower, cacheable=False)
    return primitive


def by_jax(along: Extent) -> bool:
    """Tells whether JAX's own collective does it: inside this process, or where the session says "native"."""
    return along.suits_jax and (along.local or (along.over_hosts is False and along.scope.strategy == "native"))


def site(
    function: str, along: Extent, tree: Any, arrays: Sequence[Any], strategy: str = "passing", wire_dtype: str = "full"
) -> Site:
    """Returns the site of a call with the leaves of `tree`, as `arrays`."""
    types = [type_text(jax.typeof(array)) for array in arrays]
    stream, paths = along.scope.stream, paths_of(tree)
    return new_site(
        stream, strategy, DEFAULT_BUCKET_BYTES, paths, function=function, types=types, wire_dtype=wire_dtype
    )


def equal_along(aval: Any, *, span: Span, **_: Any) -> Any:
    """Returns the type of a result that has the shape of its leaf, and is the same on all devices of the span."""
    return named_axes.without_varying(aval, span.along.axes)


def operands(tree: Any, along: Extent) -> tuple[list[Any], Any]:
    """Returns the leaves of `tree` as arrays, cast as JAX casts them; and its structure."""
    leaves, treedef = jax.tree.flatten(tree)
    return [varying(jnp.asarray(leaf), along.axes) for leaf in leaves], treedef


def varying(array: Any, axes: Sequence[Any]) -> Any:
    """Returns `array`, cast under `check_vma=True` as JAX casts the operands of its own collectives."""
    if not named_axes.check_vma():
        return array
    return named_axes.pvary(array, named_axes.must_vary(axes) - named_axes.varying(jax.typeof(array)))

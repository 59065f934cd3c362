"""The primitives `passing_psum` and `passing_psum_invariant`, and their rules.

Both take the leaves of one bucket (all of one dtype) and return their sums. The second is the form of
`shard_map(check_vma=True)`, whose result is invariant over the axes; they differ in their types and transposes, like
JAX's own `psum` and `psum_invariant`.

Parameters: `axes` (names), `over_hosts` (whether the sum goes over the hosts, which the mesh doesn't know; None: traced
before `init`), `vmapped` (the axis that continues over the hosts was one of vmap, and is summed already), `world_size`
(hosts of the session), `device_ranks` (devices of each host that are ranks of their own at the switch; 0: each host is
one), `op` ("sum" or "max"), `site` (what names the sum, alike on all hosts).
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax_passing import _compat
from jax_passing.collective.axes import Axes, Extent, undeclared
from jax_passing.collective.call_order import INT32, in_control_flow, in_order
from jax_passing.collective.call_place import place_of
from jax_passing.collective.handlers import register_ffi
from jax_passing.collective.placement import Placement, place
from jax_passing.collective.sites import Site, canonical
from jax_passing.errors import ConfigError, GradientError, NotInitializedError, ThreadError
from jax_passing.host import scope as scopes

passing_psum_p = Primitive("passing_psum")
passing_psum_invariant_p = Primitive("passing_psum_invariant")
passing_pvary_p = Primitive("passing_pvary")  # the transpose of the second; its rules are in pvary.py
passing_pvary_p.multiple_results = True


# Evaluation without jit: a program of its own for each combination of parameters.


@functools.lru_cache(maxsize=1024)
def _jitted(primitive: Primitive, **params: Any) -> Any:
    def passing_psum(*leaves: Any) -> Any:
        return primitive.bind(*leaves, **params)

    return jax.jit(passing_psum)


def _evaluate(primitive: Primitive, *leaves: Any, **params: Any) -> Any:
    return _jitted(primitive, **params)(*leaves)


# Types.


def _abstract_eval(primitive: Primitive, *avals: Any, axes: Axes, **_: Any) -> tuple[list[Any], set[Any]]:
    for axis in axes:
        _compat.axis_size(axis)
    _compat.check_types(avals, axes, primitive.name)
    if primitive is passing_psum_invariant_p:
        avals = tuple(_compat.without_varying(aval, axes) for aval in avals)
    else:  # as lax.psum, which keeps weak types under check_vma alone
        avals = tuple(aval.update(weak_type=False) for aval in avals)
    return list(avals), {_compat.NamedAxisEffect(axis) for axis in axes}


# Derivatives: the map is linear. Only leaves whose tangent isn't zero travel.


def check_not_vmapped(name: str, vmapped: bool, world_size: int) -> None:
    """What is equal in all elements of a vmap has a gradient that JAX sums outside of it, over this host alone."""
    if vmapped and world_size > 1:
        raise GradientError(
            f"{name} over an axis of vmap that continues over the hosts is differentiated from outside of the vmap, "
            "where JAX would sum gradients over this host's elements alone. Take the gradient inside the function that "
            "is mapped: jax.vmap(lambda x: jax.grad(loss)(x), axis_name=...)."
        )


def linear_jvp(
    primitive: Primitive, primals: Sequence[Any], tangents: Sequence[Any], *, site: Site, **params: Any
) -> tuple[list[Any], list[Any]]:
    """Of a primitive that maps each leaf linearly to a result."""
    results = primitive.bind(*primals, site=site, **params)
    moving = [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    result_tangents: list[Any] = [ad.Zero(jax.typeof(each).to_tangent_aval()) for each in results]
    if moving:
        theirs = primitive.bind(*(tangents[i] for i in moving), site=site.only(moving, "j"), **params)
        for i, tangent in zip(moving, theirs, strict=True):
            result_tangents[i] = tangent
    return results, result_tangents


def _jvp(primitive: Primitive, primals: Sequence[Any], tangents: Sequence[Any], *, site: Site, **params: Any) -> Any:
    check_not_vmapped("psum", params["vmapped"], params["world_size"])
    if params["op"] != "sum":
        raise GradientError("pmax and pmin can't be differentiated; jax.lax.pmax can't be, either.")
    return linear_jvp(primitive, primals, tangents, site=site, **params)


LOSS = "tc"  # the transpose of a sum that is the loss itself: its cotangent is a constant


def _transpose(
    primitive: Primitive, cotangents: Sequence[Any], *leaves: Any, axes: Axes, site: Site, **params: Any
) -> list[Any]:
    moving = [i for i, cotangent in enumerate(cotangents) if type(cotangent) is not ad.Zero]
    result: list[Any] = [ad.Zero(leaf.aval.to_ct_aval()) if ad.is_undefined_primal(leaf) else None for leaf in leaves]
    given = [cotangents[i] for i in moving]
    if primitive is passing_psum_invariant_p:
        # The sum is one value that every device and host shares, so its cotangent is each one's own.
        given = _cast(given, axes, site.only(moving, "t"), params)
    elif given:
        # Each device has a sum of its own, equal by chance: their cotangents add up, as those of lax.psum do.
        step = LOSS if all(map(_compat.is_constant, given)) else "t"
        given = primitive.bind(*given, axes=axes, site=site.only(moving, step), **params)
    for i, cotangent in zip(moving, given, strict=True):
        result[i] = cotangent if ad.is_undefined_primal(leaves[i]) else None
    return result


def _cast(cotangents: list[Any], axes: Axes, site: Site, params: dict[str, Any]) -> list[Any]:
    if _compat.check_vma():
        return [_compat.pvary(cotangent, _compat.must_vary(axes)) for cotangent in cotangents]
    along = Extent(axes, params["over_hosts"], scopes.current() or scopes.Scope())
    cast: list[Any] = passing_pvary_p.bind(
        *cotangents, along=along, vmapped=params["vmapped"], of_sums=False, site=site
    )
    return cast


# vmap.


def declared_here(axis: Any, over_hosts: bool | None) -> bool:
    """Whether this is the axis that continues over the hosts."""
    scope = scopes.current()
    return bool(over_hosts) and scope is not None and axis in scope.axis_names


def _batch(
    primitive: Primitive, axis_data: Any, leaves: Sequence[Any], dims: Sequence[Any], *, axes: Axes, **params: Any
) -> tuple[Sequence[Any], Sequence[Any]]:
    if axis_data.name not in axes:
        return primitive.bind(*leaves, axes=axes, **params), dims
    if params["op"] == "max":
        leaves = [leaf if dim is None else jnp.max(leaf, axis=dim) for leaf, dim in zip(leaves, dims, strict=True)]
    else:
        leaves = [
            leaf * np.array(axis_data.size, leaf.dtype) if dim is None else jnp.sum(leaf, axis=dim, dtype=leaf.dtype)
            for leaf, dim in zip(leaves, dims, strict=True)
        ]
    if declared_here(axis_data.name, params["over_hosts"]):
        params["vmapped"] = True
        params["site"] = replace(params["site"], vmapped=axis_data.size)  # of which all hosts must have as many
    rest = tuple(axis for axis in axes if axis != axis_data.name)
    return primitive.bind(*leaves, axes=rest, **params), [None] * len(leaves)


# CPU: one asynchronous FFI call per device.


def _placement(mesh: _compat.LoweringMesh, axes: Axes, world_size: int, over_hosts: bool) -> Placement:
    for axis in axes:
        if axis not in mesh.manual_axes:
            raise NotImplementedError(f"psum over axis {axis!r}, which is no manual axis of the mesh")
    if mesh.devices is not None:
        processes = np.array([device.process_index for device in mesh.devices])
    elif jax.process_count() == 1 or mesh.device_count == 1:
        processes = np.full(mesh.device_count, jax.process_index())
    else:
        raise ConfigError("psum can't tell which processes' devices the program runs on: say so with jax.set_mesh")
    placement = place(processes, mesh.axis_sizes, mesh.manual_axes, axes, jax.process_index())
    if over_hosts and placement.process_count > 1:
        raise ConfigError(
            f"init(axis_name=...) declares that one of the axes {axes} continues over the hosts from a mesh inside one "
            f"process, but this mesh spans {placement.process_count} processes already. Give the axes of meshes that "
            "span the processes other names, or don't declare this one."
        )
    if not over_hosts and not placement.local and placement.process_count != world_size:
        raise ConfigError(f"the mesh spans {placement.process_count} processes, but the session has {world_size} ranks")
    return placement


def _check_flat(placement: Placement, axes: Axes, device_ranks: int) -> None:
    if placement.local_member_count != device_ranks:
        raise ConfigError(
            f"strategy='flat' gives each of this host's {device_ranks} devices a rank at the switch, which adds up all "
            f"of them; this psum over {axes} has a part on {placement.local_member_count} of them in each group. "
            "Use strategy='passing' for it."
        )


def type_text(aval: Any) -> str:
    """Of an array, for identities and messages."""
    # Made of what can't differ between hosts: JAX's own text of a type lists sets in any order.
    return f"{aval.dtype.name}[{','.join(map(str, aval.shape))}]"


def _site_name(site: Site, types: Sequence[str], axes: Axes, flat: bool) -> str:
    types = site.types or types
    leaves = list(types[:4]) + ([f"{len(types) - 4} more"] if len(types) > 4 else [])
    kind = ("flat " if flat else "") + site.function
    where = " in a loop or branch that all hosts must go through alike" if in_control_flow() else ""
    return f"{site.place} {kind} of {', '.join(leaves)} over {', '.join(map(str, axes)) or 'the hosts'}{where}"


def _lower(
    ctx: mlir.LoweringRuleContext,
    *leaves: Any,
    axes: Axes,
    over_hosts: bool | None,
    vmapped: bool,
    world_size: int,
    device_ranks: int,
    op: str,
    site: Site,
) -> Sequence[Any]:
    if over_hosts is None:
        raise NotInitializedError(f"no session: call jax_passing.init() before running the psum at {site.place}")
    mesh = _compat.lowering_mesh(ctx)
    placement = _placement(mesh, axes, world_size, over_hosts)
    if placement.local and not over_hosts:
        return _lower_local(ctx, leaves, axes, placement, world_size, op)
    avals_in: Sequence[Any] = ctx.avals_in
    carried = [i for i, aval in enumerate(avals_in) if aval.size > 0]
    if not carried:
        return leaves
    if site.stream and mesh.device_count > 1 and world_size > 1:
        raise ThreadError(
            f"the sum at {site.place} is in the stream {site.stream!r}, in a program on {mesh.device_count} devices. "
            "XLA runs such programs one after the other, and hosts whose threads come in another order would wait for "
            "each other: dispatch them from the thread that called init, and only programs on one device from others."
        )
    flat = device_ranks > 0
    if flat:
        _check_flat(placement, axes, device_ranks)
    register_ffi()

    def group_and_member() -> jax.Array:
        others = tuple(axis for axis in mesh.axis_sizes if axis in mesh.manual_axes and axis not in axes)
        return jnp.stack(
            [_compat.jax_collectives.axis_index(names) if names else jnp.int32(0) for names in (others, axes)]
        )

    int32_2 = jax.core.ShapedArray((2,), np.dtype(np.int32))
    where = mlir.lower_fun(group_and_member, multiple_results=False)(
        ctx.replace(primitive=None, avals_in=(), avals_out=(int32_2,))
    )
    avals = [avals_in[i] for i in carried]
    types = [type_text(aval) for aval in avals]
    program = _compat.program_name(ctx)
    identity = site.only(carried).identity(
        name_stack=str(ctx.name_stack),
        calls=[place_of(frames) for frames in _compat.calls_around()],
        axes=[str(axis) for axis in axes],
        op=op,
        leaves=types,
    )
    ordinal, number, nth = _compat.next_site(ctx, program, canonical(identity))
    if (
        site.in_order and "rematted_computation" not in identity["name_stack"]
    ):  # JAX recomputes in an order that it makes up
        identity["nth"] = nth
    dtype = avals[0].dtype
    parts = 2 if np.issubdtype(dtype, np.complexfloating) else 1  # a complex number is two floats
    spans = placement.process_count > 1 and mesh.devices is not None
    attributes = {
        "program": program,
        "ordinal": np.int64(ordinal),
        "site": np.int64(number),
        "identity": canonical(identity),
        "site_name": _site_name(site.only(carried), types, axes, flat),
        "dtype": {"complex64": "float32", "complex128": "float64"}.get(dtype.name, dtype.name),
        "op": op,
        "leaf_elements": np.array([aval.size * parts for aval in avals], np.int64),
        "member_count": np.int64(placement.member_count * (world_size if over_hosts else 1)),
        "local_member_count": np.int64(placement.local_member_count),
        "replica_count": np.int64(placement.replica_count),
        "world_size": np.int64(world_size * device_ranks if flat else world_size),
        "flat": np.int64(flat),
        "conditional": np.int64(in_control_flow()),
        "devices": ",".join(str(device.id) for device in mesh.devices or ()) if spans else "",
    }
    # The program says that it is carried out, and how often: with a side effect XLA leaves it where it is. What it
    # would remove, or hoist out of a loop, may depend on the rest of the program, in which hosts may differ. (XLA
    # refuses side effects in what it partitions itself.)
    call = jax.ffi.ffi_lowering(
        "passing_psum",
        operand_output_aliases={i + 2: i + 1 for i in range(len(avals))},
        has_side_effect=mesh.all_manual,
    )
    outs = [ctx.avals_out[i] for i in carried]
    call_ctx = ctx.replace(avals_in=[int32_2, INT32, *avals], avals_out=[INT32, *outs])

    def sum_after(before: Any) -> tuple[Any, Any]:
        after, *sums = call(call_ctx, *where, before, *(leaves[i] for i in carried), **attributes)
        return after, sums

    sums = in_order(ctx, site, sum(aval.size * aval.dtype.itemsize for aval in avals), sum_after)
    result = list(leaves)
    for i, value in zip(carried, sums, strict=True):
        result[i] = value
    return result


def _lower_local(
    ctx: mlir.LoweringRuleContext, leaves: Sequence[Any], axes: Axes, placement: Placement, world_size: int, op: str
) -> Sequence[Any]:
    """An axis of a mesh that lies inside each process: JAX's own sum."""
    scope = scopes.current()
    if placement.process_count == 1 and world_size > 1 and axes and scope is not None and not scope.axis_names:
        raise ConfigError(undeclared(axes))
    if placement.member_count == 1:
        return leaves
    reduce = {"sum": _compat.jax_collectives.psum, "max": _compat.jax_collectives.pmax}[op]
    lowered: Sequence[Any] = mlir.lower_fun(lambda *xs: reduce(xs, axes), multiple_results=True)(ctx, *leaves)
    return lowered


def _lower_elsewhere(ctx: mlir.LoweringRuleContext, *_: Any, **__: Any) -> Sequence[Any]:
    raise NotImplementedError(f"passing_psum runs on CPU devices only so far, not on {ctx.module_context.platforms}")


for _primitive in (passing_psum_p, passing_psum_invariant_p):
    _primitive.multiple_results = True
    _compat.summing.add(_primitive)
    _primitive.def_impl(functools.partial(_evaluate, _primitive))
    _primitive.def_effectful_abstract_eval(functools.partial(_abstract_eval, _primitive))
    ad.primitive_jvps[_primitive] = functools.partial(_jvp, _primitive)
    ad.primitive_transposes[_primitive] = functools.partial(_transpose, _primitive)
    batching.fancy_primitive_batchers[_primitive] = functools.partial(_batch, _primitive)
    # Each call is lowered by itself: with JAX's cache, equal calls would share a site.
    mlir.register_lowering(_primitive, _lower_elsewhere, cacheable=False)
    mlir.register_lowering(_primitive, _lower, platform="cpu", cacheable=False)

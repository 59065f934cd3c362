"""How a sum over the hosts is lowered: what is the same on all platforms."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from jax_passing._compat import inlined_calls, jax_collectives, lowered_modules, meshes
from jax_passing.collective.axes import Axes, undeclared
from jax_passing.collective.lowering.order import BlockOrder, Turn, in_control_flow
from jax_passing.collective.lowering.placement import Placement, place
from jax_passing.collective.naming.sites import Site, canonical, type_text
from jax_passing.collective.naming.source_location import location_of
from jax_passing.collective.naming.sum_spec import ANY_WORLD_SIZE, SumSpec
from jax_passing.errors import ConfigError, UsageError
from jax_passing.host import scope as scopes

POSITION = jax.core.ShapedArray((2,), np.dtype(np.int32))  # the type of `group_and_member`


Emit = Callable[[mlir.LoweringRuleContext, Site, SumSpec, Sequence[Any], Turn], tuple[Any, Sequence[Any]]]
"""Writes the calls of a sum of these leaves, which wait for `turn.before`. The context has the leaves' types; none is
empty. It returns int32[] for the calls behind it (BlockOrder.leave), and the results: sums, then residuals if the site
asks for them."""


def rule(emit: Emit) -> Callable[..., Sequence[Any]]:
    """Returns JAX's rule for the primitive on a platform where `emit` writes the calls."""
    return functools.partial(_lower, emit)


def _lower(emit: Emit, ctx: mlir.LoweringRuleContext, *leaves: Any, site: Site) -> Sequence[Any]:
    if stays_inside(ctx, site):
        return lower_inside(ctx, leaves, site)
    results = list(leaves) * (2 if site.residuals else 1)
    carried = carried_of(ctx)
    indices = [*carried, *(len(leaves) + i for i in carried if site.residuals)]
    for i, value in zip(indices, lower_in_turn(emit, ctx, leaves, site), strict=True):
        results[i] = value
    return results


def stays_inside(ctx: mlir.LoweringRuleContext, site: Site) -> bool:
    """Tells whether each process has all devices that add up, so that JAX's own sum does it."""
    return _placement_of(ctx, site).local and not site.over_hosts


def carried_of(ctx: mlir.LoweringRuleContext) -> list[int]:
    """Returns the indices of the leaves that aren't empty."""
    avals: Sequence[Any] = ctx.avals_in
    return [i for i, aval in enumerate(avals) if aval.size > 0]


def lower_in_turn(
    emit: Emit, ctx: mlir.LoweringRuleContext, leaves: Sequence[Any], site: Site, row_avals: Sequence[Any] = ()
) -> Sequence[Any]:
    """Lowers the calls of a sum over the hosts, in the order of the program, and returns the results of the leaves that
    aren't empty. Where large gathers and scatters have calls for their turns, `row_avals` are the results' types."""
    carried = carried_of(ctx)
    if not carried:
        return []
    avals: list[Any] = [ctx.avals_in[i] for i in carried]
    ctx = ctx.replace(avals_in=avals)
    site = site.only(carried)
    spec = describe(ctx, site)
    size_bytes = sum(aval.size * aval.dtype.itemsize for aval in avals)
    turn = BlockOrder.of(ctx).enter(ctx, site, size_bytes, has_turns=bool(row_avals))
    spec = replace(spec, early=turn.is_early)
    after, results = emit(ctx, site, spec, [leaves[i] for i in carried], turn)
    turn.order.leave(turn, after, results, row_avals)
    return results


def describe(ctx: mlir.LoweringRuleContext, site: Site) -> SumSpec:
    """Returns the description of a sum over the hosts, of leaves that aren't empty."""
    mesh, placement = meshes.lowering_mesh(ctx), _placement_of(ctx, site)
    _check_stream(site, mesh)
    if site.device_ranks > 0:
        _check_flat(placement, site)
    spans = placement.process_count > 1 and mesh.devices is not None
    return SumSpec.of(
        site,
        **_names(ctx, site),
        **_elements(ctx.avals_in),
        member_count=placement.member_count * (site.world_size or 1 if site.over_hosts else 1),
        local_member_count=placement.local_member_count,
        replica_count=placement.replica_count,
        world_size=(site.world_size or ANY_WORLD_SIZE) * (site.device_ranks or 1),
        flat=site.device_ranks > 0,
        conditional=in_control_flow(),
        moves="all",  # until a platform's own rule says that it keeps rows apart
        devices=",".join(str(device.id) for device in mesh.devices or ()) if spans else "",
    )


def has_side_effect(ctx: mlir.LoweringRuleContext) -> bool:
    """Says whether the calls of a sum have one. The program says that they are carried out, and how often: with one XLA
    leaves them where they are. What it would remove, or hoist out of a loop, may depend on the rest of the program, in
    which hosts may differ. (XLA refuses side effects in what it partitions itself.)"""
    return meshes.lowering_mesh(ctx).all_manual


def _placement_of(ctx: mlir.LoweringRuleContext, site: Site) -> Placement:
    if site.over_hosts is None:
        what = "a gradient's sum" if site.kind else f"jax_passing.{site.function}"
        raise UsageError(f"no session: call jax_passing.init() before running {what} at {site.location}")
    mesh, over_hosts = meshes.lowering_mesh(ctx), site.over_hosts
    key = ("placement", *mesh.axis_sizes.items(), mesh.manual_axes, site.axes, site.world_size, over_hosts)
    make = functools.partial(_placement, mesh, site.axes, site.world_size, over_hosts)
    placement: Placement = BlockOrder.of(ctx).share(key, make)
    return placement


def _placement(mesh: meshes.LoweringMesh, axes: Axes, world_size: int | None, over_hosts: bool) -> Placement:
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
    if not over_hosts and not placement.local and world_size is None:
        raise ConfigError(
            f"psum over {axes} of a mesh that spans {placement.process_count} processes: jax.distributed can't change "
            "their number, as an elastic session does. Give each host a mesh of its own devices and declare the axis "
            "(init(axis_name=...)), or leave out world_size_min."
        )
    if not over_hosts and not placement.local and placement.process_count != world_size:
        raise ConfigError(f"the mesh spans {placement.process_count} processes, but the session has {world_size} ranks")
    return placement


def _check_stream(site: Site, mesh: meshes.LoweringMesh) -> None:
    if site.stream and mesh.device_count > 1 and site.world_size != 1:
        raise UsageError(
            f"the sum at {site.location} is in the stream {site.stream!r}, in a program on {mesh.device_count} "
            "devices. XLA runs such programs one after the other, and hosts whose threads come in another order would "
            "wait for each other: dispatch them from the thread that called init, and only programs on "
            "one device from others."
        )


def _check_flat(placement: Placement, site: Site) -> None:
    here = placement.local_member_count
    if here != site.device_ranks:
        raise ConfigError(
            f"strategy='flat' gives each of this host's {site.device_ranks} devices a rank at the switch, which adds "
            f"up all of them; this psum over {site.axes or 'an axis of vmap'} has a part on {here} of them in each "
            "group. Use strategy='passing' for it."
        )


def group_and_member(ctx: mlir.LoweringRuleContext, axes: Axes) -> Any:
    """Lowers int32[2], this device's index along the other manual axes, and along those of the sum."""
    mesh = meshes.lowering_mesh(ctx)
    others = tuple(axis for axis in mesh.axis_sizes if axis in mesh.manual_axes and axis not in axes)

    def indices() -> jax.Array:
        return jnp.stack([jax_collectives.axis_index(names) if names else jnp.int32(0) for names in (others, axes)])

    own = ctx.replace(primitive=None, avals_in=(), avals_out=(POSITION,))
    (position,) = BlockOrder.of(ctx).share((others, axes), lambda: mlir.lower_fun(indices, multiple_results=False)(own))
    return position


def _elements(avals: Sequence[Any]) -> dict[str, Any]:
    """Returns the fields of the spec that say what is added up: a complex number is two floats."""
    dtype = avals[0].dtype
    parts = 2 if np.issubdtype(dtype, np.complexfloating) else 1
    return {
        "dtype": {"complex64": "float32", "complex128": "float64"}.get(dtype.name, dtype.name),
        "leaf_elements": tuple(aval.size * parts for aval in avals),
    }


def _names(ctx: mlir.LoweringRuleContext, site: Site) -> dict[str, Any]:
    """Returns the fields of the spec that name the sum of these leaves."""
    program = lowered_modules.program_name(ctx)
    types = [type_text(aval) for aval in ctx.avals_in]
    identity = site.identity(
        name_stack=str(ctx.name_stack),
        calls=[location_of(frames) for frames in inlined_calls.calls_around()],
        leaves=types,
    )
    ordinal, number, nth = lowered_modules.next_site(ctx, program, canonical(identity))
    recomputed = "rematted_computation" in identity["name_stack"]  # JAX does so in an order that it makes up
    if site.in_order and not recomputed:
        identity["nth"] = nth
    return {
        "program": program,
        "ordinal": ordinal,
        "site": number,
        "identity": canonical(identity),
        "site_name": _site_name(site, types),
    }


def _site_name(site: Site, types: Sequence[str]) -> str:
    types = site.types or types
    leaves = list(types[:4]) + ([f"{len(types) - 4} more"] if len(types) > 4 else [])
    kind = ("flat " if site.device_ranks else "") + site.function
    where = " in a loop or branch that all hosts must go through alike" if in_control_flow() else ""
    over = ", ".join(map(str, site.axes)) or "the hosts"
    name = f"{site.location} {kind} of {', '.join(leaves)} over {over}{where}"
    return name.replace("\n", " ")  # a spec has a line for it


def lower_inside(ctx: mlir.LoweringRuleContext, leaves: Sequence[Any], site: Site) -> Sequence[Any]:
    """Lowers JAX's own sum, over an axis of a mesh that lies inside each process."""
    placement, axes = _placement_of(ctx, site), site.axes
    scope = scopes.current()
    alone = site.world_size == 1
    if placement.process_count == 1 and not alone and axes and scope is not None and not scope.axis_names:
        raise ConfigError(undeclared(axes))
    if placement.member_count == 1 and not site.residuals:
        return leaves
    reduce = {"sum": jax_collectives.psum, "max": jax_collectives.pmax}[site.op]

    def reduced(*leaves: jax.Array) -> list[jax.Array]:
        results = reduce(leaves, axes) if placement.member_count > 1 else leaves
        return [*results, *map(jnp.zeros_like, leaves if site.residuals else ())]

    lowered: Sequence[Any] = mlir.lower_fun(reduced, multiple_results=True)(ctx, *leaves)
    return lowered

"""How a sum over the hosts is lowered: what is the same on all platforms."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

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


class HostsSum(NamedTuple):
    """A sum over the hosts.

    Attributes:
      mesh, axes: over which it goes.
      site: names it.
      carried: indices of its leaves among those of the call: none is empty.
      avals: types of its leaves.
      placement: which devices add up.
      spans: whether the mesh spans processes, and JAX tells which.
      spec: its description for the handlers, without what only GPUs need.
      residuals: whether it returns the leaves' residuals behind their sums.
    """

    mesh: meshes.LoweringMesh
    axes: Axes
    site: Site
    carried: list[int]
    avals: list[Any]
    placement: Placement
    spans: bool
    spec: SumSpec
    residuals: bool

    @property
    def avals_out(self) -> list[Any]:
        """The types of its results."""
        return self.avals * (2 if self.residuals else 1)

    @property
    def has_side_effect(self) -> bool:
        """Says whether its calls have one. The program says that they are carried out, and how often: with one XLA
        leaves them where they are. What it would remove, or hoist out of a loop, may depend on the rest of the program,
        in which hosts may differ. (XLA refuses side effects in what it partitions itself.)"""
        return self.mesh.all_manual


Emit = Callable[[mlir.LoweringRuleContext, HostsSum, Sequence[Any], Turn], tuple[Any, Sequence[Any]]]
"""Writes the calls of a sum of these leaves, which wait for `turn.before`. It returns int32[] that is there when the
sum is done, on GPU when its call has started, and what `avals_out` are the types of."""


def rule(emit: Emit, *, on_gpu: bool = False) -> Callable[..., Sequence[Any]]:
    """Returns JAX's rule for the primitive on a platform where `emit` writes the calls."""
    return functools.partial(_lower, emit, on_gpu)


def _lower(emit: Emit, on_gpu: bool, ctx: mlir.LoweringRuleContext, *leaves: Any, **params: Any) -> Sequence[Any]:
    """passing_psum.py says what the parameters are."""
    total = describe(ctx, **params)
    if isinstance(total, Placement):
        return lower_local(ctx, leaves, total, params)
    results = list(leaves) * (2 if params["residuals"] else 1)
    if total is None:
        return results
    indices = [*total.carried, *(len(leaves) + i for i in total.carried if total.residuals)]
    for i, value in zip(indices, lower_in_turn(emit, ctx, total, leaves, on_gpu=on_gpu), strict=True):
        results[i] = value
    return results


def describe(
    ctx: mlir.LoweringRuleContext,
    *,
    axes: Axes,
    over_hosts: bool | None,
    vmapped: bool,
    world_size: int | None,
    device_ranks: int,
    op: str,
    site: Site,
    residuals: bool = False,
) -> HostsSum | Placement | None:
    """Returns the sum; if it stays inside each host, where its devices are; None if all leaves are empty. The
    parameters are those of the primitive (passing_psum.py)."""
    if over_hosts is None:
        what = "a gradient's sum" if site.kind else f"jax_passing.{site.function}"
        raise UsageError(f"no session: call jax_passing.init() before running {what} at {site.location}")
    mesh, order = meshes.lowering_mesh(ctx), BlockOrder.of(ctx)
    key = ("placement", *mesh.axis_sizes.items(), mesh.manual_axes, axes, world_size, over_hosts)
    placement: Placement = order.share(key, lambda: _placement(mesh, axes, world_size, over_hosts))
    if placement.local and not over_hosts:
        return placement
    avals_in: Sequence[Any] = ctx.avals_in
    carried = [i for i, aval in enumerate(avals_in) if aval.size > 0]
    if not carried:
        return None
    _check_stream(site, mesh, world_size)
    flat = device_ranks > 0
    if flat:
        _check_flat(placement, axes, device_ranks)
    avals = [avals_in[i] for i in carried]
    spans = placement.process_count > 1 and mesh.devices is not None
    spec = SumSpec(
        **_names(ctx, site.only(carried), [type_text(aval) for aval in avals], axes, op, flat),
        **_elements(avals),
        op=op,
        wire=site.wire,
        member_count=placement.member_count * (world_size or 1 if over_hosts else 1),
        local_member_count=placement.local_member_count,
        replica_count=placement.replica_count,
        world_size=(world_size or ANY_WORLD_SIZE) * (device_ranks if flat else 1),
        flat=flat,
        conditional=in_control_flow(),
        devices=",".join(str(device.id) for device in mesh.devices or ()) if spans else "",
    )
    return HostsSum(mesh, axes, site, carried, avals, placement, spans, spec, residuals)


def lower_in_turn(
    emit: Emit, ctx: mlir.LoweringRuleContext, total: HostsSum, leaves: Sequence[Any], *, on_gpu: bool = False
) -> Sequence[Any]:
    """Lowers the calls of a sum, in the order of the program, and returns their results. `leaves`: all of the call."""
    order = BlockOrder.of(ctx)
    size_bytes = sum(aval.size * aval.dtype.itemsize for aval in total.avals)
    turn = order.enter(ctx, total.site, total.spec.site, size_bytes, on_gpu=on_gpu)
    after, results = emit(ctx, total, [leaves[i] for i in total.carried], turn)
    turn.order.leave(turn, after, results)
    return results


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


def _check_stream(site: Site, mesh: meshes.LoweringMesh, world_size: int | None) -> None:
    if site.stream and mesh.device_count > 1 and world_size != 1:
        raise UsageError(
            f"the sum at {site.location} is in the stream {site.stream!r}, in a program on {mesh.device_count} "
            "devices. XLA runs such programs one after the other, and hosts whose threads come in another order would "
            "wait for each other: dispatch them from the thread that called init, and only programs on "
            "one device from others."
        )


def _check_flat(placement: Placement, axes: Axes, device_ranks: int) -> None:
    if placement.local_member_count != device_ranks:
        raise ConfigError(
            f"strategy='flat' gives each of this host's {device_ranks} devices a rank at the switch, which adds up all "
            f"of them; this psum over {axes or 'an axis of vmap'} has a part on {placement.local_member_count} of them "
            "in each group. Use strategy='passing' for it."
        )


def group_and_member(ctx: mlir.LoweringRuleContext, total: HostsSum) -> Any:
    """Lowers int32[2], this device's index along the other manual axes, and along those of the sum."""
    mesh, axes = total.mesh, total.axes
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


def _names(
    ctx: mlir.LoweringRuleContext, site: Site, types: Sequence[str], axes: Axes, op: str, flat: bool
) -> dict[str, Any]:
    """Returns the fields of the spec that name the sum of these leaves."""
    program = lowered_modules.program_name(ctx)
    identity = site.identity(
        name_stack=str(ctx.name_stack),
        calls=[location_of(frames) for frames in inlined_calls.calls_around()],
        axes=[str(axis) for axis in axes],
        op=op,
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
        "site_name": _site_name(site, types, axes, flat),
    }


def _site_name(site: Site, types: Sequence[str], axes: Axes, flat: bool) -> str:
    types = site.types or types
    leaves = list(types[:4]) + ([f"{len(types) - 4} more"] if len(types) > 4 else [])
    kind = ("flat " if flat else "") + site.function
    where = " in a loop or branch that all hosts must go through alike" if in_control_flow() else ""
    name = f"{site.location} {kind} of {', '.join(leaves)} over {', '.join(map(str, axes)) or 'the hosts'}{where}"
    return name.replace("\n", " ")  # a spec has a line for it


def lower_local(
    ctx: mlir.LoweringRuleContext, leaves: Sequence[Any], placement: Placement, params: Mapping[str, Any]
) -> Sequence[Any]:
    """Lowers JAX's own sum, over an axis of a mesh that lies inside each process."""
    axes: Axes = params["axes"]
    residuals: bool = params.get("residuals", False)
    scope = scopes.current()
    alone = params["world_size"] == 1
    if placement.process_count == 1 and not alone and axes and scope is not None and not scope.axis_names:
        raise ConfigError(undeclared(axes))
    if placement.member_count == 1 and not residuals:
        return leaves
    reduce = {"sum": jax_collectives.psum, "max": jax_collectives.pmax}[params["op"]]

    def reduced(*leaves: jax.Array) -> list[jax.Array]:
        results = reduce(leaves, axes) if placement.member_count > 1 else leaves
        return [*results, *map(jnp.zeros_like, leaves if residuals else ())]

    lowered: Sequence[Any] = mlir.lower_fun(reduced, multiple_results=True)(ctx, *leaves)
    return lowered

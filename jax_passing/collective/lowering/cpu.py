"""How a sum is lowered: on CPU to one asynchronous FFI call for each device, without a collective of XLA. On GPU it is
two calls: start_and_done.py."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from jax_passing._compat import inlined_calls, jax_collectives, lowered_modules, meshes
from jax_passing.collective.axes import Axes, undeclared
from jax_passing.collective.lowering.gpu import in_host
from jax_passing.collective.lowering.gpu.start_and_done import places, start_and_done
from jax_passing.collective.lowering.order import INT32, in_control_flow, in_order, share
from jax_passing.collective.lowering.placement import Placement, place
from jax_passing.collective.naming.sites import Site, canonical, type_text
from jax_passing.collective.naming.source_location import place_of
from jax_passing.collective.runtime.handlers import register_ffi
from jax_passing.errors import ConfigError, NotInitializedError, ThreadError
from jax_passing.host import scope as scopes

_ANY_WORLD_SIZE = 0  # of xla_ffi/ffi/instance.h: an elastic session's
INT32_2 = jax.core.ShapedArray((2,), np.dtype(np.int32))

Call = Callable[[Any, Sequence[Any], int], tuple[Any, Sequence[Any]]]
"""Lowers the call of a sum: given int32[] to wait for, leaves, and which sums may be under way beside it (the number of
their first), it returns int32[] that is there when the sum is done, on GPU when its call has started, and the leaves'
sums."""


class HostsSum(NamedTuple):
    """A sum over the hosts.

    Attributes:
      mesh, axes: over which it goes.
      site: what names it.
      avals: types of its leaves, none empty.
      avals_out: of the leaves' sums.
      placement: of its devices.
      spans: whether the mesh spans processes, and JAX tells which.
      attributes: what else there is to say: those of SiteInfo in xla_ffi/ffi/instance.h.
    """

    mesh: meshes.LoweringMesh
    axes: Axes
    site: Site
    avals: list[Any]
    avals_out: list[Any]
    placement: Placement
    spans: bool
    attributes: dict[str, Any]

    @property
    def has_side_effect(self) -> bool:
        """Of its calls. The program says that they are carried out, and how often: with a side effect XLA leaves them
        where they are. What it would remove, or hoist out of a loop, may depend on the rest of the program, in which
        hosts may differ. (XLA refuses side effects in what it partitions itself.)"""
        return self.mesh.all_manual


def lower_by(
    call_of: Callable[[mlir.LoweringRuleContext, HostsSum], Call],
    ctx: mlir.LoweringRuleContext,
    *leaves: Any,
    axes: Axes,
    over_hosts: bool | None,
    vmapped: bool,
    world_size: int | None,
    device_ranks: int,
    op: str,
    site: Site,
    on_gpu: bool = False,
) -> Sequence[Any]:
    """JAX's rule for the primitive, where `call_of` says how a sum is called. primitive.py says what its parameters
    are."""
    if over_hosts is None:
        raise NotInitializedError(f"no session: call jax_passing.init() before running the psum at {site.place}")
    mesh = meshes.lowering_mesh(ctx)
    key = ("placement", *mesh.axis_sizes.items(), mesh.manual_axes, axes, world_size, over_hosts)
    placement: Placement = share(ctx, key, lambda: _placement(mesh, axes, world_size, over_hosts))
    if placement.local and not over_hosts:
        return _lower_local(ctx, leaves, axes, placement, world_size, op)
    avals_in: Sequence[Any] = ctx.avals_in
    carried = [i for i, aval in enumerate(avals_in) if aval.size > 0]
    if not carried:
        return leaves
    _check_stream(site, mesh, world_size)
    flat = device_ranks > 0
    if flat:
        _check_flat(placement, axes, device_ranks)
    avals = [avals_in[i] for i in carried]
    spans = placement.process_count > 1 and mesh.devices is not None
    attributes = {
        **_names(ctx, site.only(carried), [type_text(aval) for aval in avals], axes, op, flat),
        **_elements(avals),
        "op": op,
        "member_count": np.int64(placement.member_count * (world_size or 1 if over_hosts else 1)),
        "local_member_count": np.int64(placement.local_member_count),
        "replica_count": np.int64(placement.replica_count),
        "world_size": np.int64((world_size or _ANY_WORLD_SIZE) * (device_ranks if flat else 1)),
        "flat": np.int64(flat),
        "conditional": np.int64(in_control_flow()),
        "devices": ",".join(str(device.id) for device in mesh.devices or ()) if spans else "",
    }
    avals_out = [ctx.avals_out[i] for i in carried]
    call = call_of(ctx, HostsSum(mesh, axes, site, avals, avals_out, placement, spans, attributes))
    given = [leaves[i] for i in carried]
    size_bytes = sum(aval.size * aval.dtype.itemsize for aval in avals)
    number = int(attributes["site"])
    sums = in_order(ctx, site, size_bytes, number, lambda before, first: call(before, given, first), on_gpu=on_gpu)
    result = list(leaves)
    for i, value in zip(carried, sums, strict=True):
        result[i] = value
    return result


def _by_ffi(ctx: mlir.LoweringRuleContext, total: HostsSum) -> Call:
    register_ffi()
    where = group_and_member(ctx, total)
    lowering = jax.ffi.ffi_lowering(
        "passing_psum",
        operand_output_aliases={i + 2: i + 1 for i in range(len(total.avals))},
        has_side_effect=total.has_side_effect,
    )
    own = ctx.replace(avals_in=[INT32_2, INT32, *total.avals], avals_out=[INT32, *total.avals_out])

    def call(before: Any, leaves: Sequence[Any], _first: int) -> tuple[Any, Sequence[Any]]:
        after, *sums = lowering(own, *where, before, *leaves, **total.attributes)
        return after, sums

    return call


def _by_start_and_done(ctx: mlir.LoweringRuleContext, total: HostsSum) -> Call:
    register_ffi()
    attributes = total.attributes | places(total.mesh, total.axes, total.spans, total.site.place)
    shards = _shards(total, attributes["groups"], attributes["members"])
    attributes["shards"] = np.zeros_like(attributes["mesh"]) if shards is None else shards.numbers
    attributes["shard_elements"] = np.int64(0 if shards is None else shards.elements)
    avals_in, avals_out = (total.avals, total.avals_out) if shards is None else ([shards.aval], [shards.aval])
    own = ctx.replace(avals_in=avals_in, avals_out=avals_out)

    def call(before: Any, leaves: Sequence[Any], first: int) -> tuple[Any, Sequence[Any]]:
        attributes["beside"] = np.int64(first)
        given = leaves if shards is None else [in_host.scatter(ctx, shards, total.avals, leaves)]
        after, sums = start_and_done(own, before, given, has_side_effect=total.has_side_effect, **attributes)
        return after, sums if shards is None else in_host.gather(ctx, shards, total.avals, sums[0])

    return call


def _shards(total: HostsSum, groups: np.ndarray, members: np.ndarray) -> in_host.Shards | None:
    """If this host's devices are to add up their elements before the sum over the hosts."""
    if not total.mesh.all_manual or total.attributes["flat"] or total.attributes["conditional"]:
        return None  # NCCL would wait for ever for a device that doesn't come to a loop or branch
    devices = total.mesh.devices
    return in_host.shards(
        total.axes,
        total.placement,
        np.array([device.process_index for device in devices]) if devices else np.zeros_like(groups),
        groups,
        members,
        int(total.attributes["leaf_elements"].sum()),
        jnp.dtype(total.attributes["dtype"]),
        total.attributes["op"],
    )


lower = functools.partial(lower_by, _by_ffi)
"""JAX's rule for the primitive on CPU."""
lower_on_gpu = functools.partial(lower_by, _by_start_and_done, on_gpu=True)
"""The same on GPU."""


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
        raise ThreadError(
            f"the sum at {site.place} is in the stream {site.stream!r}, in a program on {mesh.device_count} devices. "
            "XLA runs such programs one after the other, and hosts whose threads come in another order would wait for "
            "each other: dispatch them from the thread that called init, and only programs on one device from others."
        )


def _check_flat(placement: Placement, axes: Axes, device_ranks: int) -> None:
    if placement.local_member_count != device_ranks:
        raise ConfigError(
            f"strategy='flat' gives each of this host's {device_ranks} devices a rank at the switch, which adds up all "
            f"of them; this psum over {axes} has a part on {placement.local_member_count} of them in each group. "
            "Use strategy='passing' for it."
        )


def group_and_member(ctx: mlir.LoweringRuleContext, total: HostsSum) -> Any:
    """int32[2], this device's index along the other manual axes, and along those of the sum."""
    mesh, axes = total.mesh, total.axes
    others = tuple(axis for axis in mesh.axis_sizes if axis in mesh.manual_axes and axis not in axes)

    def indices() -> jax.Array:
        return jnp.stack([jax_collectives.axis_index(names) if names else jnp.int32(0) for names in (others, axes)])

    own = ctx.replace(primitive=None, avals_in=(), avals_out=(INT32_2,))
    return share(ctx, (others, axes), lambda: mlir.lower_fun(indices, multiple_results=False)(own))


def _elements(avals: Sequence[Any]) -> dict[str, Any]:
    """The attributes of the call that say what it adds up: a complex number is two floats."""
    dtype = avals[0].dtype
    parts = 2 if np.issubdtype(dtype, np.complexfloating) else 1
    return {
        "dtype": {"complex64": "float32", "complex128": "float64"}.get(dtype.name, dtype.name),
        "leaf_elements": np.array([aval.size * parts for aval in avals], np.int64),
    }


def _names(
    ctx: mlir.LoweringRuleContext, site: Site, types: Sequence[str], axes: Axes, op: str, flat: bool
) -> dict[str, Any]:
    """The attributes of the call that name the sum of these leaves."""
    program = lowered_modules.program_name(ctx)
    identity = site.identity(
        name_stack=str(ctx.name_stack),
        calls=[place_of(frames) for frames in inlined_calls.calls_around()],
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
        "ordinal": np.int64(ordinal),
        "site": np.int64(number),
        "identity": canonical(identity),
        "site_name": _site_name(site, types, axes, flat),
    }


def _site_name(site: Site, types: Sequence[str], axes: Axes, flat: bool) -> str:
    types = site.types or types
    leaves = list(types[:4]) + ([f"{len(types) - 4} more"] if len(types) > 4 else [])
    kind = ("flat " if flat else "") + site.function
    where = " in a loop or branch that all hosts must go through alike" if in_control_flow() else ""
    return f"{site.place} {kind} of {', '.join(leaves)} over {', '.join(map(str, axes)) or 'the hosts'}{where}"


def _lower_local(
    ctx: mlir.LoweringRuleContext,
    leaves: Sequence[Any],
    axes: Axes,
    placement: Placement,
    world_size: int | None,
    op: str,
) -> Sequence[Any]:
    """An axis of a mesh that lies inside each process: JAX's own sum."""
    scope = scopes.current()
    if placement.process_count == 1 and world_size != 1 and axes and scope is not None and not scope.axis_names:
        raise ConfigError(undeclared(axes))
    if placement.member_count == 1:
        return leaves
    reduce = {"sum": jax_collectives.psum, "max": jax_collectives.pmax}[op]
    lowered: Sequence[Any] = mlir.lower_fun(lambda *xs: reduce(xs, axes), multiple_results=True)(ctx, *leaves)
    return lowered

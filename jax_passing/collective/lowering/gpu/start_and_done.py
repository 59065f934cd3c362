"""Sums on GPUs: two FFI calls for each, so that XLA enqueues other work between them (docs/internals/accelerators.md).

*start* gives XLA's thread back at once; *done* blocks it until the sum is there. Between them XLA must keep the leaves,
as done takes them. Where sums are held behind the backward pass (hold.py), so are their done calls: by then all that
doesn't need the sums is enqueued.

Start calls wait for those before them in the program. The host's sums then start as on CPU hosts, when those before
them are done; the rendezvous sees to it.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from jax_passing._compat import meshes
from jax_passing.collective.lowering.gpu import in_host
from jax_passing.collective.lowering.gpu.early_starts import start_early
from jax_passing.collective.lowering.gpu.gpu_spec import ANY_DEVICE, GpuSpec
from jax_passing.collective.lowering.gpu.started_sums import StartedSums
from jax_passing.collective.lowering.hosts_sum import has_side_effect, rule
from jax_passing.collective.lowering.order import INT32, BlockOrder, Turn
from jax_passing.collective.naming.sites import Site
from jax_passing.collective.naming.sum_spec import SumSpec
from jax_passing.collective.runtime.handlers import register_ffi
from jax_passing.errors import ConfigError

_DONE = "passing_psum_done"
_GATE = 1  # which operand of a done call says when it may block


def _emit(
    ctx: mlir.LoweringRuleContext, site: Site, spec: SumSpec, leaves: Sequence[Any], turn: Turn
) -> tuple[Any, Sequence[Any]]:
    register_ffi()
    roles = _device_roles(ctx, site, spec)
    # Residuals belong to a device's own elements, which a device with a slice doesn't have.
    slices = None if site.residuals else _slices(ctx, site, spec, roles)
    started = StartedSums.of(ctx)
    gpu = GpuSpec(
        overlap_group=started.overlap_group(turn, spec.site),
        slice_elements=0 if slices is None else slices.elements,
        gpus=_ints(roles.gpus),
        groups=_ints(roles.groups),
        members=_ints(roles.members),
        slices=_ints(np.zeros_like(roles.gpus) if slices is None else slices.numbers),
    )
    given: Sequence[Any] = leaves
    avals: list[Any] = list(ctx.avals_in)
    if slices is not None:
        given, avals = [in_host.scatter(ctx, slices, ctx.avals_in, leaves)], [slices.aval]
    elif site.residuals:
        zeros = [mlir.ir_constant(np.broadcast_to(np.zeros((), aval.dtype), aval.shape)) for aval in avals]
        given, avals = [*leaves, *zeros], [*avals, *avals]
    token, sums = _start_and_done(ctx, turn.before, avals, given, spec, gpu)
    started.add(site, token)
    return token, sums if slices is None else in_host.gather(ctx, slices, ctx.avals_in, sums[0])


lower_on_gpu = rule(_emit)
"""JAX's rule for the primitive on GPU."""


def _slices(ctx: mlir.LoweringRuleContext, site: Site, spec: SumSpec, roles: "DeviceRoles") -> in_host.Slices | None:
    """Returns how this host's devices add up their elements before the sum over the hosts, if they are to."""
    mesh = meshes.lowering_mesh(ctx)
    if not mesh.all_manual or spec.flat or spec.conditional:
        return None  # NCCL would wait for ever for a device that doesn't come to a loop or branch
    if spec.local_member_count == 1 or spec.replica_count > 1:
        return None
    processes = np.array([device.process_index for device in mesh.devices]) if mesh.devices else 0 * roles.groups
    return in_host.slices(
        site.axes,
        spec.local_member_count,
        processes,
        roles.groups,
        roles.members,
        sum(spec.leaf_elements),
        jnp.dtype(spec.dtype),
        spec.op,
    )


def _ints(numbers: np.ndarray) -> tuple[int, ...]:
    return tuple(numbers.tolist())


def _start_and_done(
    ctx: mlir.LoweringRuleContext, before: Any, avals: list[Any], leaves: Sequence[Any], spec: SumSpec, gpu: GpuSpec
) -> tuple[Any, list[Any]]:
    """Lowers a sum of `leaves` of these types: (int32[] that is there when it has started, sums)."""
    count = len(leaves)
    start = jax.ffi.ffi_lowering(
        "passing_psum",
        operand_output_aliases={i + 1: i + 1 for i in range(count)},
        has_side_effect=has_side_effect(ctx),
    )
    own = ctx.replace(avals_in=[INT32, *avals], avals_out=[INT32, *avals])
    token, *under_way = start(own, before, *leaves, spec=spec.encode(), gpu=gpu.encode())
    done = jax.ffi.ffi_lowering(
        _DONE,
        operand_output_aliases={i + 2: i for i in range(count)},
        has_side_effect=has_side_effect(ctx),
    )
    own = ctx.replace(avals_in=[INT32, INT32, *avals], avals_out=avals)
    return token, list(done(own, token, token, *under_way))


def finish_behind(
    ctx: mlir.LoweringRuleContext, sums: Sequence[Any], others: Sequence[Any], avals: Sequence[Any]
) -> None:
    """Has the done calls that give `sums` block only when `others` are there, all sums so far have started, and those
    that were held before are there: else XLA may await, and copy back, the first to come last. What those waited for
    needn't be said again.

    Args:
      avals: types of `sums`, then of `others`.
    """
    order, started = BlockOrder.of(ctx), StartedSums.of(ctx)
    given: dict[Any, dict[Any, None]] = {}  # by done call: what makes sums of its results, in order
    last: dict[Any, tuple[Any, Any]] = {}  # by done call: one of these sums, its type
    for value, aval in zip(sums, avals, strict=False):
        # Only in this block: in another one, a loop's or a branch's, it might not be carried out as often.
        if order.tokens_of([value]):
            operations = _way_from_done(value)
            given.setdefault(operations[0], {}).update(dict.fromkeys(operations))
            last[operations[0]] = (value, aval)
    calls = {call: way for call, way in given.items() if not _is_used(way)}
    if not calls:
        return
    if meshes.lowering_mesh(ctx).all_manual:
        adds_up_first = any(len(way) > 1 for way in calls.values())  # what comes behind done gathers the slices
        start_early(ctx, [token.owner.operation for token in started.take_newest_buckets()], int(adds_up_first))
    needed = [
        *started.exchange_held([last[call] for call in calls]),
        *zip(others, avals[len(sums) :], strict=True),
        *((token, INT32) for token in started.take_unawaited(order.last)),
    ]
    own = ctx.replace(primitive=None, avals_in=[aval for _, aval in needed], avals_out=[INT32])
    gate: Any = jax.ffi.ffi_lowering("passing_hold")(own, *(value for value, _ in needed))[0]
    for call, way in calls.items():
        call.operands[_GATE] = gate
        last_moved = gate.owner
        for operation in way:
            operation.move_after(last_moved)
            last_moved = operation


def _way_from_done(value: Any) -> list[Any]:
    """Returns the operations that make `value` of the results of a done call, in order; the first one is this call."""
    operation = value.owner.operation
    if operation.name == "stablehlo.custom_call" and f'"{_DONE}"' == str(operation.attributes["call_target_name"]):
        return [operation]
    way: dict[Any, None] = {}
    for operand in operation.operands:
        way.update(dict.fromkeys(_way_from_done(operand)))
    return [*way, operation] if way else []


def _is_used(operations: Collection[Any]) -> bool:
    """Returns whether others than these use their results."""
    return any(use.owner.operation not in operations for each in operations for out in each.results for use in out.uses)


class DeviceRoles(NamedTuple):
    """The roles of a mesh's devices in a sum.

    Attributes:
      gpus: int64[device], the number of each, as GpuSpec has it.
      groups, members: int64[device], the group of each, and which member of the group it is.
    """

    gpus: np.ndarray
    groups: np.ndarray
    members: np.ndarray


def _device_roles(ctx: mlir.LoweringRuleContext, site: Site, spec: SumSpec) -> DeviceRoles:
    """Returns which devices add up: the host can't read the GPU's own index in time."""
    mesh, axes = meshes.lowering_mesh(ctx), site.axes
    if mesh.device_count == 1 or not mesh.axis_sizes:
        return DeviceRoles(np.array([ANY_DEVICE]), np.zeros(1, np.int64), np.zeros(1, np.int64))
    if mesh.devices is None:
        raise ConfigError(
            f"the sum at {site.location} is lowered for {mesh.device_count} GPUs that JAX doesn't name: give "
            "jax.shard_map its mesh of devices (mesh=jax.make_mesh(...)), not an abstract one."
        )
    numbers = [device.id for device in mesh.devices]
    if not spec.devices:  # the mesh lies inside the process: devices count from its first, as on all hosts
        local = sorted(device.id for device in jax.local_devices(backend=mesh.devices[0].platform))
        numbers = [local.index(number) for number in numbers]
    sizes = tuple(mesh.axis_sizes.values())
    coordinates = dict(zip(mesh.axis_sizes, np.indices(sizes).reshape(len(sizes), -1), strict=True))

    def index(names: Sequence[Any]) -> np.ndarray:
        total = np.zeros(mesh.device_count, np.int64)
        for name in names:
            total = total * mesh.axis_sizes[name] + coordinates[name]
        return total

    others = [axis for axis in mesh.axis_sizes if axis in mesh.manual_axes and axis not in axes]
    return DeviceRoles(np.array(numbers), index(others), index(axes))

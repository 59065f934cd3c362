"""Sums on GPUs: two FFI calls for each, so that XLA enqueues other work between them (docs/internals/accelerators.md).

*start* gives XLA's thread back at once; *done* blocks it until the sum is there. Between them XLA must keep the leaves,
as done takes them. Where sums are held behind the backward pass (hold.py), so are their done calls: by then all that
doesn't need the sums is enqueued.

Start calls wait for those before them in the program. The host's sums then start as on CPU hosts, when those before
them are done; the rendezvous sees to it.
"""

from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from jax_passing._compat import meshes
from jax_passing.collective.axes import Axes
from jax_passing.collective.lowering.gpu.early_starts import start_early
from jax_passing.collective.lowering.order import INT32, exchange_held, not_awaited, to_hurry, tokens_of
from jax_passing.errors import ConfigError

_ANY_DEVICE = -1  # of xla_ffi/ffi/cuda_handlers.h

_DONE = "passing_psum_done"
_GATE = 1  # which operand of a done call says when it may block


def start_and_done(
    ctx: mlir.LoweringRuleContext, before: Any, leaves: Sequence[Any], *, has_side_effect: bool, **attributes: Any
) -> tuple[Any, list[Any]]:
    """Lowers a sum of `leaves`, whose types are those of `ctx`: (int32[] that is there when it has started, sums)."""
    count = len(leaves)
    start = jax.ffi.ffi_lowering(
        "passing_psum",
        operand_output_aliases={i + 1: i + 1 for i in range(count)},
        has_side_effect=has_side_effect,
    )
    own = ctx.replace(avals_in=[INT32, *ctx.avals_in], avals_out=[INT32, *ctx.avals_in])
    token, *under_way = start(own, before, *leaves, **attributes)
    done = jax.ffi.ffi_lowering(
        _DONE,
        operand_output_aliases={i + 2: i for i in range(count)},
        has_side_effect=has_side_effect,
    )
    own = ctx.replace(avals_in=[INT32, INT32, *ctx.avals_in], avals_out=ctx.avals_out)
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
    given: dict[Any, dict[Any, None]] = {}  # by done call: what makes sums of its results, in order
    last: dict[Any, tuple[Any, Any]] = {}  # by done call: one of these sums, its type
    for value, aval in zip(sums, avals, strict=False):
        # Of this block: in another one, a loop's or a branch's, it might not be carried out as often.
        if tokens_of(ctx, [value]):
            operations = _way_from_done(value)
            given.setdefault(operations[0], {}).update(dict.fromkeys(operations))
            last[operations[0]] = (value, aval)
    calls = {call: way for call, way in given.items() if not _is_used(way)}
    if not calls:
        return
    if meshes.lowering_mesh(ctx).all_manual:
        adds_up_first = any(len(way) > 1 for way in calls.values())  # what comes behind done gathers the shards
        start_early(ctx, [token.owner.operation for token in to_hurry(ctx)], int(adds_up_first))
    needed = [
        *exchange_held(ctx, [last[call] for call in calls]),
        *zip(others, avals[len(sums) :], strict=True),
        *((token, INT32) for token in not_awaited(ctx)),
    ]
    own = ctx.replace(primitive=None, avals_in=[aval for _, aval in needed], avals_out=[INT32])
    gate: Any = jax.ffi.ffi_lowering("passing_hold")(own, *(value for value, _ in needed))[0]
    for call, way in calls.items():
        call.operands[_GATE] = gate
        place = gate.owner
        for operation in way:
            operation.move_after(place)
            place = operation


def _way_from_done(value: Any) -> list[Any]:
    """The operations that make `value` of the results of a done call, in order; the first one is this call."""
    operation = value.owner.operation
    if operation.name == "stablehlo.custom_call" and f'"{_DONE}"' == str(operation.attributes["call_target_name"]):
        return [operation]
    way: dict[Any, None] = {}
    for operand in operation.operands:
        way.update(dict.fromkeys(_way_from_done(operand)))
    return [*way, operation] if way else []


def _is_used(operations: Collection[Any]) -> bool:
    """Whether others than these use their results."""
    return any(use.owner.operation not in operations for each in operations for out in each.results for use in out.uses)


def places(mesh: meshes.LoweringMesh, axes: Axes, spans: bool, where: Any) -> dict[str, np.ndarray]:
    """The attributes of a start call that say which devices add up: the host can't read the GPU's own index in time.

    Args:
      mesh: which the program is lowered for.
      axes: of the sum.
      spans: whether the mesh spans processes. Else devices count from this process's first, as on all hosts.
      where: the place of the call.
    """
    if mesh.device_count == 1 or not mesh.axis_sizes:
        return _attributes([_ANY_DEVICE], [0], [0])
    if mesh.devices is None:
        raise ConfigError(
            f"the sum at {where} is lowered for {mesh.device_count} GPUs that JAX doesn't name: give jax.shard_map its "
            "mesh of devices (mesh=jax.make_mesh(...)), not an abstract one."
        )
    numbers = [device.id for device in mesh.devices]
    if not spans:
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
    return _attributes(numbers, index(others), index(axes))


def _attributes(mesh: Any, groups: Any, members: Any) -> dict[str, np.ndarray]:
    return {name: np.array(each, np.int64) for name, each in (("mesh", mesh), ("groups", groups), ("members", members))}

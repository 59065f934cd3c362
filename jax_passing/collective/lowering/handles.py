"""How sums are lowered that are started in one place and finished in another: on CPU, to FFI calls for each device.

xla_ffi/ffi/handlers/future_handlers.h has the calls. Starts take their turns among the sums of the program, as any sum
does. A call that finishes a sum needs no turn: it waits for a sum that all hosts have started, or come to before any
later one.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import jax
import numpy as np
from jax.interpreters import mlir

from jax_passing._compat import lowered_modules, meshes
from jax_passing.collective.lowering.hosts_sum import (
    POSITION,
    group_and_member,
    lower_in_turn,
    lower_inside,
    stays_inside,
)
from jax_passing.collective.lowering.order import INT32, Turn, make_larger
from jax_passing.collective.naming.sites import Site
from jax_passing.collective.naming.sum_spec import SumSpec
from jax_passing.collective.runtime.handlers import register_ffi

TOKEN = jax.core.ShapedArray((), np.dtype(np.float32))


def lower_start(ctx: mlir.LoweringRuleContext, *leaves: Any, invariant: bool, site: Site) -> Sequence[Any]:
    """The rule of `passing_psum_start`: leaves to the token of their sum."""
    _check_mesh(ctx, site)
    if stays_inside(ctx, site):
        own = ctx.replace(primitive=None, avals_out=ctx.avals_in)
        return _keep(ctx, ctx.avals_in, lower_inside(own, leaves, site), site)
    return lower_in_turn(_emit_start, ctx, leaves, site) or [_no_token()]


def _emit_start(
    ctx: mlir.LoweringRuleContext, site: Site, spec: SumSpec, leaves: Sequence[Any], turn: Turn
) -> tuple[Any, Sequence[Any]]:
    register_ffi()
    make_larger(ctx, turn)
    call = jax.ffi.ffi_lowering("passing_psum_start", has_side_effect=True)
    own = ctx.replace(avals_in=[POSITION, INT32, *ctx.avals_in], avals_out=[INT32, TOKEN])
    position = group_and_member(ctx, site.axes)
    after, token = call(own, position, turn.before, *leaves, spec=spec.encode(), devices=_local_devices(ctx))
    return after, [token]


def lower_keep(ctx: mlir.LoweringRuleContext, *leaves: Any, site: Site) -> Sequence[Any]:
    """The rule of `passing_keep`: leaves to a token by which they are found again."""
    _check_mesh(ctx, site)
    return _keep(ctx, ctx.avals_in, leaves, site)


def _keep(ctx: mlir.LoweringRuleContext, avals: Sequence[Any], leaves: Sequence[Any], site: Site) -> Sequence[Any]:
    register_ffi()
    carried = [i for i, aval in enumerate(avals) if aval.size > 0]
    if not carried:
        return [_no_token()]
    call = jax.ffi.ffi_lowering("passing_keep", has_side_effect=True)
    own = ctx.replace(avals_in=[avals[i] for i in carried], avals_out=[TOKEN])
    name = f"{site.location} {site.function}"
    result: Sequence[Any] = call(own, *(leaves[i] for i in carried), name=name, devices=_local_devices(ctx))
    return result


def _no_token() -> Any:
    return mlir.ir_constant(np.zeros((), np.float32))


def lower_take(ctx: mlir.LoweringRuleContext, token: Any, *others: Any, site: Site, **_: Any) -> Sequence[Any]:
    """The rule of `passing_take`: a token to its leaves."""
    _check_mesh(ctx, site)
    register_ffi()
    avals: Sequence[Any] = ctx.avals_out
    carried = [i for i, aval in enumerate(avals) if aval.size > 0]
    call = jax.ffi.ffi_lowering("passing_take", has_side_effect=True)
    own = ctx.replace(avals_in=[TOKEN, *ctx.avals_in[1:]], avals_out=[avals[i] for i in carried])
    taken = iter(call(own, token, *others, name=f"{site.location} psum_done"))
    return [next(taken) if aval.size > 0 else mlir.ir_constant(np.zeros(aval.shape, aval.dtype)) for aval in avals]


def refuse(ctx: mlir.LoweringRuleContext, *_: Any, site: Site, **__: Any) -> NoReturn:
    """The rule of all of them where handles aren't kept."""
    raise NotImplementedError(
        f"{site.location} {site.function}: sums are started and finished apart on CPU devices, not on "
        f"{lowered_modules.platforms(ctx)[0]}. Use jax_passing.psum there."
    )


def _check_mesh(ctx: mlir.LoweringRuleContext, site: Site) -> None:
    if not meshes.lowering_mesh(ctx).all_manual:
        raise NotImplementedError(
            f"{site.location} {site.function}: psum_start and psum_done run in jax.shard_map over all axes of the "
            "mesh, or on one device. Here XLA would partition some of the program, which may move or copy their calls."
        )


def _local_devices(ctx: mlir.LoweringRuleContext) -> np.int64:
    """Returns how many devices of this process run the program."""
    mesh = meshes.lowering_mesh(ctx)
    if mesh.devices is None:
        return np.int64(mesh.device_count)
    return np.int64(sum(device.process_index == jax.process_index() for device in mesh.devices))

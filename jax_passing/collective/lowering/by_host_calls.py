"""How a sum is lowered where XLA doesn't call our handlers (TPU): to one call of Python for each device."""

import atexit
import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir import ir
from jax.interpreters import mlir

from jax_passing._compat import host_callbacks, inlined_calls, jaxprs, lowered_modules, meshes
from jax_passing.collective.lowering.hosts_sum import POSITION, group_and_member, rule
from jax_passing.collective.lowering.order import INT32, Turn
from jax_passing.collective.naming.sites import Site
from jax_passing.collective.naming.sum_spec import SumSpec
from jax_passing.collective.runtime import host_calls, platforms
from jax_passing.collective.runtime.compiled_text import STREAM, stream_text
from jax_passing.errors import Failure, UsageError
from jax_passing.host.executions import wait_for_executions
from jax_passing.host.preparations import when_beginning

log = logging.getLogger("jax_passing")

_EXIT_S = 60  # longest wait for executions when Python ends


def _emit(
    ctx: mlir.LoweringRuleContext, site: Site, spec: SumSpec, leaves: Sequence[Any], turn: Turn
) -> tuple[Any, Sequence[Any]]:
    mesh, (platform,) = meshes.lowering_mesh(ctx), lowered_modules.platforms(ctx)
    name = spec.site_name
    if not mesh.all_manual:
        raise NotImplementedError(
            f"{name}: on {platform}, sums over hosts run in jax.shard_map over all axes of the mesh, or on one device. "
            "Here XLA would partition some of the program."
        )
    if inlined_calls.in_shared_function():
        raise NotImplementedError(
            f"{name} stands in a jitted function that has shardings of its own, which XLA copies where it is called; "
            f"on {platform} nothing tells the copies apart. Leave out in_shardings and out_shardings of the inner "
            "jax.jit."
        )
    if platform == "tpu" and spec.dtype == "float64":
        raise UsageError(f"{name}: a TPU has no numbers of 64 bits with a point")
    program = host_calls.program_of(ctx).native
    number = program.add(spec.encode())
    devices = _devices(mesh, site)
    avals_out = [*ctx.avals_in, *(ctx.avals_in if site.residuals else ())]
    rows, rows_out = ([_packed_type(aval) for aval in avals] for avals in (ctx.avals_in, avals_out))
    token = jax.core.ShapedArray((1,), np.dtype(np.int32))

    def add(position: np.ndarray, execution: np.ndarray, _: np.ndarray, *leaves: np.ndarray) -> Sequence[np.ndarray]:
        group, member = (int(number) for number in position)
        results = [np.empty(aval.shape, aval.dtype) for aval in rows_out]
        given = [_bytes(each) for each in results]
        failure = program.sum(
            number,
            execution=int(execution),
            group=group,
            member=member,
            device=host_calls.calling(devices, (group, member)),
            inputs=[_bytes(leaf) for leaf in leaves],
            outputs=given[: len(rows)],
            residuals=given[len(rows) :],
        )
        if failure is not None:
            raise Failure(*failure).exception()
        return [np.zeros(1, np.int32), *results]

    execution = turn.order.execution(ctx)
    given = [_convert(ctx, _pack, *each) for each in zip(leaves, ctx.avals_in, rows, strict=True)]
    operands = [group_and_member(ctx, site.axes), execution, turn.before, *given]
    avals_in = [POSITION, INT32, INT32, *rows]
    done, *results = host_calls.call(ctx, add, operands, avals_in, [token, *rows_out], has_side_effect=True)
    _note(done, STREAM, stream_text(site.stream))
    unpacked = [
        _convert(ctx, functools.partial(_unpack, aval=aval), value, row, aval)
        for value, row, aval in zip(results, rows_out, avals_out, strict=True)
    ]
    return _convert(ctx, functools.partial(_unpack, aval=INT32), done, token, INT32), unpacked


lower_by_host_calls = rule(_emit)
"""JAX's rule for the primitive on such a platform."""


def _devices(mesh: meshes.LoweringMesh, site: Site) -> np.ndarray | None:
    """Returns int[group, member], which device of this process each is, or None: host_calls.local_indices."""
    devices = host_calls.local_indices(mesh)
    if devices is None:
        return None
    devices = devices.reshape(tuple(mesh.axis_sizes.values()) or -1)
    devices = devices.transpose(_axis_order(list(mesh.axis_sizes), site.axes))
    return devices.reshape(-1, int(np.prod([mesh.axis_sizes[axis] for axis in site.axes], dtype=int)))


def _axis_order(names: list[Any], axes: Sequence[Any]) -> list[int]:
    """Returns the order of a mesh's axes for (group, member): those of the sum last."""
    return [names.index(axis) for axis in [*(name for name in names if name not in axes), *axes]] or [0]


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


# Arrays travel as one row: on TPU JAX gives all results of a callback the sharding of the first, which must have as
# many dimensions (0.10.0). And its callbacks return 64-bit numbers only where they are enabled on all threads, so these
# travel as words of 32 bits.


def _packed_type(aval: Any) -> Any:
    """The type in which an array of this type travels."""
    if aval.dtype.itemsize < 8 or aval.dtype == np.complex64:
        return jax.core.ShapedArray((aval.size,), aval.dtype)
    return jax.core.ShapedArray((aval.size * aval.dtype.itemsize // 4,), np.dtype(np.uint32))


def _pack(x: jax.Array) -> jax.Array:
    if x.dtype == np.complex128:
        x = jnp.stack([x.real, x.imag], -1)
    dtype = _packed_type(x).dtype
    return jnp.reshape(x if x.dtype == dtype else jax.lax.bitcast_convert_type(x, dtype), -1)


def _unpack(x: jax.Array, aval: Any) -> jax.Array:
    if x.dtype == aval.dtype:
        return jnp.reshape(x, aval.shape)
    if aval.dtype == np.complex128:
        parts = jax.lax.bitcast_convert_type(jnp.reshape(x, (*aval.shape, 2, 2)), np.float64)
        return jax.lax.complex(parts[..., 0], parts[..., 1])
    return jax.lax.bitcast_convert_type(jnp.reshape(x, (*aval.shape, 2)), aval.dtype)


def _convert(ctx: mlir.LoweringRuleContext, convert: Callable[[jax.Array], jax.Array], value: Any, *types: Any) -> Any:
    """Lowers the conversion of `value` from a type to another."""
    of, to = (jax.core.ShapedArray(aval.shape, aval.dtype) for aval in types)
    own = ctx.replace(primitive=None, avals_in=[of], avals_out=[to], tokens_out=None)
    (result,) = mlir.lower_fun(convert, multiple_results=False)(own, value)
    return result


def _note(value: Any, name: str, text: str) -> None:
    """Writes an attribute beside the call that makes `value`; the compiled program keeps it."""
    attributes = value.owner.attributes
    known = "mhlo.frontend_attributes"
    notes = {each.name: each.attr for each in attributes[known]} if known in attributes else {}
    attributes[known] = ir.DictAttr.get({**notes, name: ir.StringAttr.get(text)})


def _prepare() -> None:
    if any(device.platform in platforms.BY_HOST_CALLS for device in jax.local_devices()):
        # A program on one device is lowered once for all devices, if JAX may; but here it must know its own.
        for primitive in jaxprs.summing:
            host_callbacks.require_devices(primitive)
        # Exit handlers run from the last one to the first: this one when the session is over, as it registers later.
        atexit.unregister(_let_executions_end)
        atexit.register(_let_executions_end)


def _let_executions_end() -> None:
    """Python aborts the process if a program calls it while it ends. The session is over, so sums don't block."""
    if not wait_for_executions(_EXIT_S):
        log.error(
            "Computations still run %d s after the end of the program. Those with sums over hosts call Python, which "
            "may abort this process now. Wait for them before the program ends (jax.block_until_ready).",
            _EXIT_S,
        )


when_beginning(_prepare)
os.register_at_fork(after_in_child=lambda: atexit.unregister(_let_executions_end))  # there JAX doesn't work any more

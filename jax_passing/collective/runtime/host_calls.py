"""How programs reach this process where XLA doesn't call our handlers: by calls of Python (platforms.py says where).

A call blocks until it returns, which costs nothing but a thread of the host. It doesn't say which device calls, nor in
which execution. So the program does: where it begins, it asks for the number of its execution, and passes that on to
its sums (xla_ffi/ffi/gathering/host_calls.h), also to those in loops and branches, which need no visit for this.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from jax_passing import _native
from jax_passing._compat import host_callbacks, jax_collectives, lowered_modules, meshes
from jax_passing.collective.naming.sum_spec import SumSpec
from jax_passing.errors import ConfigError

_INT32 = jax.core.ShapedArray((), np.dtype(np.int32))


@dataclass
class Program:
    """The calls of one module."""

    native: _native.HostProgram = field(default_factory=_native.HostProgram)
    entry_count: int = 0  # how many entries it has: points where an execution begins
    has_visit: bool = False


def program_of(ctx: mlir.LoweringRuleContext) -> Program:
    """Returns the program of the module that is being lowered."""
    return lowered_modules.of_module(ctx, Program)


def call(
    ctx: mlir.LoweringRuleContext,
    callback: Callable[..., Sequence[np.ndarray]],
    operands: Sequence[Any],
    avals_in: Sequence[Any],
    avals_out: Sequence[Any],
    *,
    has_side_effect: bool,
) -> Sequence[Any]:
    """The values that `callback` returns: _compat/host_callbacks.py.

    Raises:
      NotImplementedError: the program is lowered for other processes.
    """
    if lowered_modules.is_exported(ctx):
        raise NotImplementedError(
            f"A program with sums over hosts can't be exported for {lowered_modules.platforms(ctx)[0]}: there it calls "
            "Python of the process that lowered it. Lower and compile it where it runs (jax.jit does)."
        )
    return host_callbacks.call(ctx, callback, operands, avals_in, avals_out, has_side_effect)


def local_indices(mesh: meshes.LoweringMesh) -> np.ndarray | None:
    """Returns the index of each device of the mesh, in row-major order, among this process's devices of that platform,
    by id; -1 for other processes'. None if there is no mesh and JAX doesn't tell the devices: such a program
    can be looked at.

    Raises:
      ConfigError: the mesh is an abstract one.
    """
    if mesh.devices is None:
        if mesh.axis_sizes:
            raise ConfigError(
                f"A program with sums over hosts is lowered for a mesh of {mesh.device_count} devices that JAX doesn't "
                "name, and here each call says which device makes it: give jax.shard_map its mesh of devices "
                "(mesh=jax.make_mesh(...)), not an abstract one."
            )
        return None
    own = sorted(device.id for device in jax.local_devices(backend=mesh.devices[0].platform))
    return np.array([own.index(device.id) if device.id in own else -1 for device in mesh.devices])


def calling(devices: np.ndarray | None, position: Any) -> int:
    """Returns what `local_indices` says of the device at this position of the mesh, which calls.

    Raises:
      RuntimeError: it says nothing, or that the device isn't one of this process's.
    """
    if devices is None:
        raise RuntimeError("JAX lowered this program without saying for which devices")
    if devices[position] < 0:
        raise RuntimeError("a device of another process calls this one")
    return int(devices[position])


def begin(ctx: mlir.LoweringRuleContext) -> Any:
    """Lowers the beginning of an execution: int32[], its number."""
    program, mesh = program_of(ctx), meshes.lowering_mesh(ctx)
    native, entry, devices = program.native, program.entry_count, local_indices(mesh)
    program.entry_count += 1

    def number(position: np.ndarray) -> Sequence[np.ndarray]:
        return [np.array(native.begin(entry=entry, device=calling(devices, int(position))), np.int32)]

    names = tuple(mesh.axis_sizes) if mesh.device_count > 1 else ()

    def position() -> jax.Array:
        return jax_collectives.axis_index(names) if names else jnp.int32(0)

    own = ctx.replace(primitive=None, avals_in=(), avals_out=(_INT32,))
    operands = mlir.lower_fun(position, multiple_results=False)(own)
    (value,) = call(ctx, number, operands, [_INT32], [_INT32], has_side_effect=True)
    return value


def count_executions(ctx: mlir.LoweringRuleContext) -> None:
    """Sums of the program stand in loops or branches, so that hosts count its executions, not its sums alone."""
    program = program_of(ctx)
    if not program.has_visit:
        name = lowered_modules.program_name(ctx)
        program.native.add(SumSpec(lowered_modules.module_ordinal(ctx, name), name).encode())
        program.has_visit = True


def hold(ctx: mlir.LoweringRuleContext, aval: Any, value: Any, other_aval: Any, other: Any) -> Any:
    """Lowers `value` with a data dependency on `other` that the compiler can't remove."""

    def held(value: jax.Array, other: jax.Array) -> jax.Array:
        first = jnp.reshape(other, -1)[0]
        number = (first.real if jnp.iscomplexobj(first) else first).astype(np.int32)
        zero = (number * (number + np.int32(1))) & np.int32(1)  # of two numbers in a row, one is even
        if value.dtype == np.bool_:
            return value ^ (zero != 0)
        if jnp.issubdtype(value.dtype, np.integer):
            return value + zero.astype(value.dtype)
        return jnp.where(zero == 0, value, jnp.full_like(value, np.nan))

    plain = [jax.core.ShapedArray(each.shape, each.dtype) for each in (aval, other_aval)]
    own = ctx.replace(primitive=None, avals_in=plain, avals_out=plain[:1], tokens_out=None)
    (result,) = mlir.lower_fun(held, multiple_results=False)(own, value, other)
    return result

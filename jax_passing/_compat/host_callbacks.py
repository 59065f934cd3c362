"""Programs on devices call this process's Python by these functions."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax._src import callback as private_callback
from jax._src import dispatch
from jax.interpreters import mlir

Callback = Callable[..., Sequence[np.ndarray]]


class _Elsewhere:
    """Stands for the backend of a platform that this process doesn't have. The program can be looked at, not run."""

    def __init__(self, platform: str) -> None:
        self.platform = platform

    def make_python_callback_from_host_send_and_recv(self, callback: Callback, *_: Any) -> Callback:
        return callback


def call(
    ctx: mlir.LoweringRuleContext,
    callback: Callback,
    operands: Sequence[Any],
    avals_in: Sequence[Any],
    avals_out: Sequence[Any],
    has_side_effect: bool,
) -> Sequence[Any]:
    """Lowers a call of `callback` with these operands, and returns the values that it will return.

    Args:
      ctx: the context of the equation that is being lowered.
      callback: takes and returns numpy arrays of these types; returns 64-bit numbers only where JAX has them on all
        threads. It may run on any thread, and on several at once.
      operands: values in the module.
      avals_in: their types.
      avals_out: types of the results: one or more, none empty.
      has_side_effect: XLA neither moves nor removes the call.
    """
    module = ctx.module_context
    if not _has_backend(module):
        module = module.replace(backend=_Elsewhere(module.platforms[0]))
    own = ctx.replace(module_context=module, primitive=None, avals_in=list(avals_in), avals_out=list(avals_out))
    results, _, _ = private_callback.emit_python_callback(
        own,
        callback,
        None,
        list(operands),
        own.avals_in,
        own.avals_out,
        has_side_effect=has_side_effect,
        returns_token=False,
        sharding=private_callback._callback_op_sharding(module.axis_context, None, own.avals_out),
    )
    found: Sequence[Any] = results
    return found


def _has_backend(module: Any) -> bool:
    try:
        return module.get_backend(optional=True) is not None
    except RuntimeError:  # JAX has none of that name
        return False


def require_devices(primitive: Any) -> None:
    """Has JAX lower each program with this primitive for one set of devices at a time, and say for which."""
    dispatch.prim_requires_devices_during_lowering.add(primitive)

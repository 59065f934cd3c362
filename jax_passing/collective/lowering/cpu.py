"""How a sum is lowered on CPU: to one asynchronous FFI call for each device, without a collective of XLA."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.interpreters import mlir

from jax_passing.collective.lowering.hosts_sum import POSITION, HostsSum, group_and_member, rule
from jax_passing.collective.lowering.order import INT32, Turn
from jax_passing.collective.runtime.handlers import register_ffi


def _emit(
    ctx: mlir.LoweringRuleContext, total: HostsSum, leaves: Sequence[Any], turn: Turn
) -> tuple[Any, Sequence[Any]]:
    register_ffi()
    call = jax.ffi.ffi_lowering(
        "passing_psum",
        operand_output_aliases={i + 2: i + 1 for i in range(len(leaves))},
        has_side_effect=total.has_side_effect,
    )
    own = ctx.replace(avals_in=[POSITION, INT32, *total.avals], avals_out=[INT32, *total.avals_out])
    after, *sums = call(own, group_and_member(ctx, total), turn.before, *leaves, spec=total.spec.encode())
    return after, sums


lower = rule(_emit)
"""JAX's rule for the primitive on CPU."""

"""How a sum is lowered on CPU: to one asynchronous FFI call for each device, without a collective of XLA."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.interpreters import mlir

from jax_passing.collective.lowering.hosts_sum import POSITION, group_and_member, has_side_effect, rule
from jax_passing.collective.lowering.order import INT32, Turn, make_larger
from jax_passing.collective.naming.sites import Site
from jax_passing.collective.naming.sum_spec import SumSpec
from jax_passing.collective.runtime.handlers import register_ffi


def _emit(
    ctx: mlir.LoweringRuleContext, site: Site, spec: SumSpec, leaves: Sequence[Any], turn: Turn
) -> tuple[Any, Sequence[Any]]:
    register_ffi()
    make_larger(ctx, turn)
    if not spec.flat:  # there a rank is a device, whose rows these aren't
        spec = replace(spec, moves=site.moves)
    call = jax.ffi.ffi_lowering(
        "passing_psum",
        operand_output_aliases={i + 2: i + 1 for i in range(len(leaves))},
        has_side_effect=has_side_effect(ctx),
    )
    avals: Sequence[Any] = ctx.avals_in
    results = [*avals, *(avals if site.residuals else ())]
    own = ctx.replace(avals_in=[POSITION, INT32, *avals], avals_out=[INT32, *results])
    after, *sums = call(own, group_and_member(ctx, site.axes), turn.before, *leaves, spec=spec.encode())
    return after, sums


def emit_rows(
    avals_in: Sequence[Any],
    avals_out: Sequence[Any],
    ctx: mlir.LoweringRuleContext,
    site: Site,
    spec: SumSpec,
    leaves: Sequence[Any],
    turn: Turn,
) -> tuple[Any, Sequence[Any]]:
    """Writes the call of a gather or scatter whose devices bring, or take, their own rows alone. `ctx` has the types
    that its leaves have in a sum, and the others are those of the call."""
    register_ffi()
    make_larger(ctx, turn)
    spec = replace(spec, moves=site.moves, rows_alone=True)
    call = jax.ffi.ffi_lowering("passing_psum", has_side_effect=has_side_effect(ctx))
    own = ctx.replace(primitive=None, avals_in=[POSITION, INT32, *avals_in], avals_out=[INT32, *avals_out])
    after, *results = call(own, group_and_member(ctx, site.axes), turn.before, *leaves, spec=spec.encode())
    return after, results


lower = rule(_emit)
"""JAX's rule for the primitive on CPU."""

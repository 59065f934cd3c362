"""How a sum is lowered on CPU: to asynchronous FFI calls of each device, without a collective of XLA."""

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
    """Writes the calls of a gather or scatter whose devices bring, or take, their own rows alone. `ctx` has the types
    that its leaves have in a sum, and the others are those of the call.

    A large one has a call for its turn, which is over when the leaves are there: the next one waits for that alone. It
    gives the sum the memory of its results, so that the sum has nothing to wait for from then on. (Were that laid over
    an array which needs the sum behind it, both would wait for each other.)
    """
    register_ffi()
    make_larger(ctx, turn)
    text = replace(spec, moves=site.moves, rows_alone=True).encode()
    position = group_and_member(ctx, site.axes)
    own = ctx.replace(primitive=None, avals_in=[POSITION, INT32, *avals_in], avals_out=[INT32, *avals_out])
    if not turn.is_call:
        call = jax.ffi.ffi_lowering("passing_psum", has_side_effect=has_side_effect(ctx))
        after, *results = call(own, position, turn.before, *leaves, spec=text)
        return after, results
    after, *memory = jax.ffi.ffi_lowering("passing_turn", has_side_effect=True)(own, position, turn.before, *leaves)
    call = jax.ffi.ffi_lowering(
        "passing_early",
        operand_output_aliases={1 + len(leaves) + i: i for i in range(len(memory))},
        has_side_effect=True,
    )
    own = ctx.replace(primitive=None, avals_in=[POSITION, *avals_in, *avals_out], avals_out=avals_out)
    return after, call(own, position, *leaves, *memory, spec=text)


lower = rule(_emit)
"""JAX's rule for the primitive on CPU."""

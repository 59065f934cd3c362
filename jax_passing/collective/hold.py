"""The primitive `passing_hold`: what uses a sum comes after the backward pass, so that sums travel beside it.

XLA's CPU compiler puts all operations in one line, to decide which buffers may share memory. There it puts a
parameter's update right after its gradient's sum, as that frees the gradient's buffer, and gives this buffer to the
next layer's gradient. At run time operations wait only for their data, and for buffers that they share: so the next
layer's gradient waits until the sum is complete, and backward pass and sums take turns.

`hold(sums, last)` returns `sums`, but to the compiler it is an operation that needs `last` as well, which are gradients
of all buckets. So all uses of the sums stand behind the backward pass in the line, and it doesn't reuse the buffer of a
sum under way. Nor that of the token that the sum produces for the next one in order (call_order.py), as the operation
takes it, too: a token that nobody reads is 4 bytes, and a layer's next temporary array would be laid over them. That
costs nothing at run time, and saves copies of parameters that would be updated while the backward pass still needs
them. (An optimization_barrier is gone before the line is made.)

On GPU it is the second half of each sum that needs `last` as well: start_and_done.py.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax_passing.collective.call_order import INT32, tokens_of
from jax_passing.collective.handlers import register_ffi
from jax_passing.collective.start_and_done import finish_behind

passing_hold_p = Primitive("passing_hold")
passing_hold_p.multiple_results = True


def hold(sums: Sequence[jax.Array], last: Sequence[jax.Array]) -> list[jax.Array]:
    """`sums`, of any shapes and dtypes; they can't be used before all of `last` are there. No array may be empty."""
    tokens = [jax.lax.slice(array, (0,) * array.ndim, (1,) * array.ndim) for array in last]
    held: list[jax.Array] = passing_hold_p.bind(*sums, *tokens, count=len(sums))
    return held


def _evaluate(*operands: Any, count: int) -> list[Any]:
    return list(operands[:count])


def _abstract_eval(*avals: Any, count: int) -> list[Any]:
    return list(avals[:count])


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, count: int) -> tuple[list[Any], list[Any]]:
    return passing_hold_p.bind(*primals, count=count), list(tangents[:count])


def _transpose(cotangents: Sequence[Any], *operands: Any, count: int) -> list[Any]:
    tokens = operands[count:]
    return [*cotangents, *(ad.Zero(t.aval.to_ct_aval()) if ad.is_undefined_primal(t) else None for t in tokens)]


def _batch(operands: Sequence[Any], dims: Sequence[Any], *, count: int) -> tuple[list[Any], list[Any]]:
    return passing_hold_p.bind(*operands, count=count), list(dims[:count])


def _lower(ctx: mlir.LoweringRuleContext, *operands: Any, count: int) -> Sequence[Any]:
    register_ffi()
    aliases = {i: i for i in range(count)}
    tokens = tokens_of(ctx, operands[:count])
    own = ctx.replace(avals_in=[*ctx.avals_in, *[INT32] * len(tokens)])
    held: Sequence[Any] = jax.ffi.ffi_lowering("passing_hold", operand_output_aliases=aliases)(own, *operands, *tokens)
    return held


def _lower_on_gpu(ctx: mlir.LoweringRuleContext, *operands: Any, count: int) -> Sequence[Any]:
    finish_behind(ctx, operands[:count], operands[count:], ctx.avals_in)
    return operands[:count]


def _lower_to_nothing(ctx: mlir.LoweringRuleContext, *operands: Any, count: int) -> Sequence[Any]:
    return operands[:count]


passing_hold_p.def_impl(_evaluate)
passing_hold_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[passing_hold_p] = _jvp
ad.primitive_transposes[passing_hold_p] = _transpose
batching.primitive_batchers[passing_hold_p] = _batch
mlir.register_lowering(passing_hold_p, _lower_to_nothing)
mlir.register_lowering(passing_hold_p, _lower, platform="cpu", cacheable=False)  # it looks at the block around it
mlir.register_lowering(passing_hold_p, _lower_on_gpu, platform="cuda", cacheable=False)

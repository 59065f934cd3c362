"""The primitive `passing_hold`: what uses a sum comes after the backward pass, so that sums travel beside it.

XLA's CPU compiler puts all operations in one line, to decide which buffers may share memory. There it puts a
parameter's update right after its gradient's sum, as that frees the gradient's buffer, and gives this buffer to the
next layer's gradient. At run time operations wait only for their data, and for buffers that they share: so the next
layer's gradient waits until the sum is complete, and backward pass and sums take turns.

`hold(sums, gate)` returns `sums`, but to the compiler it is an operation that needs `gate` as well, which is there when
gradients of all buckets are. So all uses of the sums stand behind the backward pass in the line, and it doesn't reuse
the buffer of a sum under way. Nor that of the token that the sum produces for the next one in order (order.py), as
the operation takes it, too: a token that nobody reads is 4 bytes, and a layer's next temporary array would be laid over
them. That costs nothing at run time, and saves copies of parameters that would be updated while the backward pass still
needs them. (An optimization_barrier is gone before the line is made.)

A gradient passes through `ready` on its way to its sum, which tells when it is there. (Were a part of it read instead,
XLA would copy it, as its sum overwrites it.) All buckets have one gate, behind these tokens: if each hold took the
tokens themselves, a program would grow with the square of the number of buckets.

On GPU `hold` is the second half of each sum that needs the gate as well: start_and_done.py.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax_passing.collective.lowering.gpu.start_and_done import finish_behind
from jax_passing.collective.lowering.order import INT32, BlockOrder
from jax_passing.collective.runtime.handlers import register_ffi

passing_hold_p = Primitive("passing_hold")
passing_ready_p = Primitive("passing_ready")


def hold(sums: Sequence[jax.Array], gate: jax.Array) -> list[jax.Array]:
    """`sums`, of any shapes and dtypes; they can't be used before `gate` is there."""
    held: list[jax.Array] = passing_hold_p.bind(*sums, gate, count=len(sums))
    return held


def ready(array: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The array, of any shape and dtype, and int32[] that is there when it is."""
    same, token = passing_ready_p.bind(array, count=1)
    return same, token


def together(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """`arrays`, of any shapes and dtypes; none of them can be used before all are there."""
    same: list[jax.Array] = passing_ready_p.bind(*arrays, count=len(arrays))[:-1]
    return same


def all_ready(tokens: Sequence[jax.Array]) -> jax.Array:
    """int32[] that is there when all of these int32[] are. None of them has a value."""
    gate: jax.Array = passing_ready_p.bind(*tokens, count=0)[0]
    return gate


# Both primitives return their first `count` operands; `passing_ready` also int32[].


def _more(primitive: Primitive, value: Any) -> list[Any]:
    """Lists what the primitive returns beyond its operands."""
    return [value] if primitive is passing_ready_p else []


def _evaluate(primitive: Primitive, *operands: Any, count: int) -> list[Any]:
    return [*operands[:count], *_more(primitive, np.zeros((), np.int32))]


def _abstract_eval(primitive: Primitive, *avals: Any, count: int) -> list[Any]:
    return [*avals[:count], *_more(primitive, INT32)]


def _jvp(primitive: Primitive, primals: Any, tangents: Any, *, count: int) -> tuple[list[Any], list[Any]]:
    return primitive.bind(*primals, count=count), [
        *tangents[:count],
        *_more(primitive, ad.Zero(INT32.to_tangent_aval())),
    ]


def _transpose(cotangents: Sequence[Any], *operands: Any, count: int) -> list[Any]:
    tokens = operands[count:]
    return [*cotangents[:count], *(ad.Zero(t.aval.to_ct_aval()) if ad.is_undefined_primal(t) else None for t in tokens)]


def _batch(primitive: Primitive, operands: Any, dims: Any, *, count: int) -> tuple[list[Any], list[Any]]:
    return primitive.bind(*operands, count=count), [*dims[:count], *_more(primitive, None)]


def _lower(ctx: mlir.LoweringRuleContext, *operands: Any, count: int) -> Sequence[Any]:
    register_ffi()
    tokens = BlockOrder.of(ctx).tokens_of(operands[:count])
    own = ctx.replace(avals_in=[*ctx.avals_in, *[INT32] * len(tokens)])
    aliases = {i: i for i in range(count or 1)}  # new memory might be what a sum under way still reads
    call = jax.ffi.ffi_lowering("passing_hold", operand_output_aliases=aliases)
    results: Sequence[Any] = call(own, *operands, *tokens)
    return results


def _lower_on_gpu(ctx: mlir.LoweringRuleContext, *operands: Any, count: int) -> Sequence[Any]:
    finish_behind(ctx, operands[:count], operands[count:], ctx.avals_in)
    return operands[:count]


def _lower_to_nothing(primitive: Primitive, _: mlir.LoweringRuleContext, *operands: Any, count: int) -> Sequence[Any]:
    return [*operands[:count], *_more(primitive, mlir.ir_constant(np.zeros((), np.int32)))]


for _primitive in (passing_hold_p, passing_ready_p):
    _primitive.multiple_results = True
    _primitive.def_impl(functools.partial(_evaluate, _primitive))
    _primitive.def_abstract_eval(functools.partial(_abstract_eval, _primitive))
    ad.primitive_jvps[_primitive] = functools.partial(_jvp, _primitive)
    ad.primitive_transposes[_primitive] = _transpose
    batching.primitive_batchers[_primitive] = functools.partial(_batch, _primitive)
    mlir.register_lowering(_primitive, functools.partial(_lower_to_nothing, _primitive))
    mlir.register_lowering(_primitive, _lower, platform="cpu", cacheable=False)  # it looks at the block around it
mlir.register_lowering(passing_ready_p, _lower, platform="cuda", cacheable=False)
mlir.register_lowering(passing_hold_p, _lower_on_gpu, platform="cuda", cacheable=False)

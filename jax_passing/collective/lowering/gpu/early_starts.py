"""Has XLA start sums on GPUs while the backward pass goes on, whatever order it would choose.

XLA's schedulers know of no reason to make a start call early: the memory that they would save doesn't count it. So the
reason is written into the program. A product of the backward pass that comes after a bucket's gradients is handed on
only when that bucket's sum has started: by `passing_hold`, which does nothing but to depend on both, in place. All that
depends on the product stands behind the start call, in any order.

Such a call is put behind a product of matrices only. That is in memory in any case, with the layout that a call takes.
Other results may be joined with what uses them, or, as those of convolutions, have a layout of their own. (XLA copies a
product that the program reads again behind the sums.)
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir import ir
from jax.interpreters import mlir

from jax_passing.collective.lowering.order import INT32, hold_until

_FLOATS = {"f16": jnp.float16, "bf16": jnp.bfloat16, "f32": jnp.float32, "f64": jnp.float64}  # by MLIR's names


def start_early(ctx: mlir.LoweringRuleContext, starts: Sequence[Any], more_buckets: int) -> None:
    """Has these start calls, of the buckets of one sum, stand within the backward pass where it is in their block.

    Args:
      starts: the operations, of one block.
      more_buckets: how many more buckets' gradients may be made before a bucket has started. Where devices add up
        first it takes a while until there is something to start, for which the GPU isn't to wait.
    """
    if len(starts) < 2:
        return
    operations = [each.operation for each in starts[0].block.operations]
    needed_by = _needed_by(operations, starts)
    # Whose gradients come first needs least: buckets are cut by the order of the parameters.
    bits = sorted((1 << s for s in range(len(starts))), key=lambda bit: sum(by & bit > 0 for by in needed_by))
    number, moved = -1, set()
    for k, bit in enumerate(bits):
        before, later = sum(bits[: k + 1 + more_buckets]), bits[k + 1 + more_buckets :]
        # A value that several of them need isn't the gradient of one of them, but on the way to what follows.
        several = min(2, len(later)) or 1
        rest = range(number + 1, len(operations))
        of_later = (i for i in rest if not needed_by[i] & before and needed_by[i].bit_count() >= several)
        product = next((i for i in of_later if _is_product(operations[i])), None)
        if product is None:
            continue
        number, last_moved = product, operations[product]
        for i in range(product + 1, len(operations)):
            if needed_by[i] & bit and i not in moved:
                operations[i].move_after(last_moved)
                last_moved = operations[i]
                moved.add(i)
        result = operations[product].results[0]
        token = starts[bit.bit_length() - 1].results[0]
        held = hold_until(ctx, _aval(result.type), result, INT32, token)
        held.owner.operation.move_after(last_moved)
        result.replace_all_uses_except(held, held.owner.operation)


def _needed_by(operations: Sequence[Any], starts: Sequence[Any]) -> list[int]:
    """Returns for each operation of a block which start calls need it, or are it: bit s for that of number s."""
    number = {operation: i for i, operation in enumerate(operations)}
    needed_by = [0] * len(operations)
    for s, start in enumerate(starts):
        needed_by[number[start]] |= 1 << s
    for i in reversed(range(len(operations))):  # operands stand before what uses them
        if needed_by[i]:
            for owner in _owners(operations[i]):
                if owner in number:
                    needed_by[number[owner]] |= needed_by[i]
    return needed_by


def _owners(operation: Any) -> Iterator[Any]:
    """Yields the operations whose results this one takes, or what its regions hold."""
    for operand in operation.operands:
        if not isinstance(operand.owner, ir.Block):
            yield operand.owner.operation
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _owners(inner.operation)


def _is_product(operation: Any) -> bool:
    """Returns whether it multiplies matrices: XLA makes an outer product, which may be huge, only where it is used."""
    if operation.name != "stablehlo.dot_general" or _aval(operation.results[0].type) is None:
        return False
    left, right, result = (math.prod(each.type.shape) for each in (*operation.operands, operation.results[0]))
    return 0 < result < left * right


def _aval(of: Any) -> Any:
    """Returns the type in JAX; None if it isn't one of floats whose shape is known."""
    dtype = _FLOATS.get(str(of.element_type))
    return jax.core.ShapedArray(tuple(of.shape), np.dtype(dtype)) if dtype and of.has_static_shape else None

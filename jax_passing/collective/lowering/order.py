"""In which order a program's sums start: that of the program, on all hosts.

XLA's CPU runtime carries out a program's operations concurrently, as soon as their operands are there; but small
programs one after the other, and an operation may have to wait for one that used its buffer before. Both follow an
order that XLA makes up, and that differs between hosts whose programs differ anywhere. If host 0 waits in one sum and
host 1 in another, neither ever comes to the other's. So each call of the primitive takes a value that the calls before
it produce when they are done: all hosts wait for their sums in the order of the program.

The buckets of one call are an exception, as they should travel side by side: large ones may start in any order. They
don't wait for each other's buffers, as what uses them is held behind all of them (hold.py); and with idle operations
beside them and buffers of their size XLA doesn't take the program for a small one.

What a loop or branch comes to must be the same on all hosts, but may not be. So beside the outermost one goes a visit,
which counts the executions of the program: a sum meets only those of the same execution.

It is the order of one straight line of code: of a body of shard_map, of a loop or a branch. A jitted function inside of
it counts as the lines that it stands for, a loop or branch as one call (docs/internals/identity.md).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from jax_passing._compat import jaxprs, lowered_modules, meshes, patches
from jax_passing.collective.naming.sites import Site
from jax_passing.collective.runtime import host_calls, platforms
from jax_passing.collective.runtime.handlers import register_ffi
from jax_passing.host import scope as scopes

LARGE_BYTES = 1 << 16  # XLA's limit is 512; beside so many bytes on a network one more round trip doesn't count

_IDLE_CALLS = 8  # XLA runs up to so many operations one after the other, whatever their size

INT32 = jax.core.ShapedArray((), np.dtype(np.int32))


@dataclass
class _Line:
    """The calls in one block of a module so far: those of the last group started side by side."""

    execution: Any = None  # its number, if calls of Python have asked for it
    group: object = None
    first: int = 0  # the number of the first call of that group
    before: Any = None  # what they had to wait for
    after: list[Any] = field(default_factory=list)  # what is there when they are done
    tokens: dict[Any, tuple[Any, Any]] = field(default_factory=dict)  # of each result: its call's before and after
    held: list[tuple[Any, Any]] = field(default_factory=list)  # on GPU, of the calls held last: a sum, its type
    awaited: set[Any] = field(default_factory=set)  # on GPU, of `after`: what calls were held until
    new: list[tuple[object, Any]] = field(default_factory=list)  # of the calls since to_hurry: whose they are, int32[]
    shared: dict[object, Any] = field(default_factory=dict)  # what its calls have in common


def in_order(
    ctx: mlir.LoweringRuleContext,
    site: Site,
    size_bytes: int,
    number: int,
    call: Callable[[Any, int], tuple[Any, Any]],
    *,
    on_gpu: bool = False,
) -> Any:
    """Lowers a call of the primitive in its place.

    Args:
      ctx: of the call.
      site: its.
      size_bytes: of its leaves.
      number: of its call in the module.
      call: given int32[] to wait for, and the number of the first of the calls that may be under way beside it, makes
        the call: (int32[] that is there when it is done, its results).
      on_gpu: there the int32[] is there when the call has started, and the rendezvous needs that number
        (start_and_done.py).
    """
    line: _Line = lowered_modules.of_block(ctx, _Line)
    # A call that blocks its device can't have others beside it.
    side_by_side = size_bytes >= LARGE_BYTES and not platforms.by_host_calls(ctx)
    whose = (site.place, site.call, site.kind, site.function, site.stream)
    group = whose if side_by_side else object()
    if line.group != group or not line.after:
        line.first = number
        line.before = _sum_of(ctx, line.after)
        line.group, line.after = group, []
    elif len(line.after) == 1 and not on_gpu and meshes.lowering_mesh(ctx).all_manual:
        _make_larger(ctx)
    after, results = call(line.before, line.first)
    line.after.append(after)
    line.new.append((whose, after))
    line.tokens.update((result, (line.before, after)) for result in results)
    return results


def execution_of(ctx: mlir.LoweringRuleContext) -> Any:
    """int32[], the number of the execution, for calls of Python."""
    for line in lowered_modules.of_blocks_around(ctx):
        if line.execution is not None:
            return line.execution
    if in_control_flow():
        raise NotImplementedError(_OUTSIDE)
    line = lowered_modules.of_block(ctx, _Line)
    line.execution = host_calls.begin(ctx)
    return line.execution


_OUTSIDE = (
    "a loop or branch with a sum over hosts in it stands outside of jax.shard_map. Where XLA calls Python for sums, as "
    "on a TPU, nothing would count its executions there: put the loop or branch inside of jax.shard_map."
)


def share(ctx: mlir.LoweringRuleContext, key: object, make: Callable[[], Any]) -> Any:
    """Returns what `make` made when this block first asked for that key: all its calls share it."""
    line: _Line = lowered_modules.of_block(ctx, _Line)
    if key not in line.shared:
        line.shared[key] = make()
    return line.shared[key]


def tokens_of(ctx: mlir.LoweringRuleContext, values: Sequence[Any]) -> list[Any]:
    """The int32[] that the calls in this block wait for, and produce, whose results are among `values`.

    Who takes them as operands keeps XLA from giving their memory to others while the calls are under way.
    """
    line: _Line = lowered_modules.of_block(ctx, _Line)
    return list(dict.fromkeys(token for value in values for token in line.tokens.get(value, ())))


def not_awaited(ctx: mlir.LoweringRuleContext) -> list[Any]:
    """The int32[] that say that sums of this block have started, on GPUs, but for those that were asked for before."""
    line: _Line = lowered_modules.of_block(ctx, _Line)
    new = [after for after in line.after if after not in line.awaited]
    line.awaited.update(new)
    return new


def to_hurry(ctx: mlir.LoweringRuleContext) -> list[Any]:
    """The int32[] of the buckets of the last sum of this block, if it wasn't asked for them before."""
    line: _Line = lowered_modules.of_block(ctx, _Line)
    new, line.new = line.new, []
    return [after for whose, after in new if whose == new[-1][0]]


def exchange_held(ctx: mlir.LoweringRuleContext, held: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """A sum, and its type, of each call that was held last in this block before those of `held` are."""
    line: _Line = lowered_modules.of_block(ctx, _Line)
    before, line.held = line.held, held
    return before


@patches.LOOPS_AND_BRANCHES.uses
def _in_order_as_a_whole(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Of a loop or a branch with sums inside: it starts when the sums before it are done, and those after it wait."""

    def lower(ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Any:
        if not any(map(jaxprs.holds_sums, jaxprs.bodies(params))):
            return rule(ctx, *operands, **params)
        in_line = meshes.lowering_mesh(ctx).all_manual
        scope = scopes.of_session()
        counted = scope is not None and not scope.alone and not in_control_flow()
        if platforms.by_host_calls(ctx):
            if not in_line:
                raise NotImplementedError(_OUTSIDE)
            execution_of(ctx)
            if counted:
                host_calls.count_executions(ctx)
        else:
            register_ffi()
            if counted:
                operands = _visit(ctx, operands, in_line)
        line: _Line = lowered_modules.of_block(ctx, _Line)
        smallest = _smallest(ctx.avals_in)
        if in_line and line.after and smallest is not None:
            held = hold_until(ctx, ctx.avals_in[smallest], operands[smallest], INT32, _sum_of(ctx, line.after))
            operands = (*operands[:smallest], held, *operands[smallest + 1 :])
        with _inside():
            results = rule(ctx, *operands, **params)
        smallest = _smallest(ctx.avals_out)
        if smallest is not None and in_line:
            after = hold_until(ctx, INT32, _zero(), ctx.avals_out[smallest], results[smallest])
            line.group, line.after = None, [after]
        return results

    return lower


_depth = threading.local()  # .of_thread: loops and branches around what is being lowered


def in_control_flow() -> bool:
    """Whether what is being lowered lies in a loop or branch."""
    return getattr(_depth, "of_thread", 0) > 0


@contextmanager
def _inside() -> Iterator[None]:
    _depth.of_thread = getattr(_depth, "of_thread", 0) + 1
    try:
        yield
    finally:
        _depth.of_thread -= 1


def _visit(ctx: mlir.LoweringRuleContext, operands: tuple[Any, ...], in_line: bool) -> tuple[Any, ...]:
    """Tells of the execution, wherever XLA puts it: sums that come earlier tell of it, too. Returns the operands."""
    program = lowered_modules.program_name(ctx)
    attributes = {"program": program, "ordinal": np.int64(lowered_modules.module_ordinal(ctx, program))}
    if in_line:
        _effect(ctx, "passing_visit", **attributes)
        return operands
    # XLA refuses side effects in what it partitions, so there the call hangs on what XLA can't do without: the index of
    # a branch, or a scalar that counts iterations. (An array might be gathered from all devices for it.) If XLA finds
    # that a loop doesn't need it all the same, the sums are refused: xla_ffi/ffi/instance.cc.
    avals: Sequence[Any] = ctx.avals_in
    for i, aval in enumerate(avals):
        if _is_plain(aval) and aval.ndim == 0 and aval.dtype.kind in "biu":
            own = ctx.replace(primitive=None, avals_in=(aval,), avals_out=(aval,))
            call = jax.ffi.ffi_lowering("passing_visit", operand_output_aliases={0: 0})
            (held,) = call(own, operands[i], **attributes)
            return (*operands[:i], held, *operands[i + 1 :])
    return operands


def _smallest(avals: Sequence[Any]) -> int | None:
    """Index of the array with the fewest bytes, of those that have any: XLA may have to copy it."""
    sizes = {i: aval.size * aval.dtype.itemsize for i, aval in enumerate(avals) if _is_plain(aval) and aval.size}
    return min(sizes, key=sizes.__getitem__, default=None)


def _is_plain(aval: Any) -> bool:
    return isinstance(aval, jax.core.ShapedArray) and isinstance(aval.dtype, np.dtype) and aval.dtype.itemsize > 0


def hold_until(ctx: mlir.LoweringRuleContext, aval: Any, value: Any, other_aval: Any, other: Any) -> Any:
    """`value`, which is there when `other` is."""
    if platforms.by_host_calls(ctx):
        return host_calls.hold(ctx, aval, value, other_aval, other)
    own = ctx.replace(primitive=None, avals_in=(aval, other_aval), avals_out=(aval,))
    (held,) = jax.ffi.ffi_lowering("passing_hold", operand_output_aliases={0: 0})(own, value, other)
    return held


def _zero() -> Any:
    return mlir.ir_constant(np.zeros((), np.int32))


def _sum_of(ctx: mlir.LoweringRuleContext, values: list[Any]) -> Any:
    """int32[] that is there when all of `values` are."""

    def total(*values: Any) -> Any:
        return sum(values, np.zeros((), np.int32)) if len(values) > 1 else values[0]

    if not values:
        return _zero()
    own = ctx.replace(primitive=None, avals_in=(INT32,) * len(values), avals_out=(INT32,))
    (result,) = mlir.lower_fun(total, multiple_results=False)(own, *values)
    return result


def _make_larger(ctx: mlir.LoweringRuleContext) -> None:
    for _ in range(_IDLE_CALLS):
        _effect(ctx, "passing_hold")


def _effect(ctx: mlir.LoweringRuleContext, target: str, **attributes: Any) -> None:
    """A call without operands and results, which XLA leaves where it is."""
    nothing = ctx.replace(primitive=None, avals_in=(), avals_out=())
    jax.ffi.ffi_lowering(target, has_side_effect=True)(nothing, **attributes)

"""A program's sums start in the order of the program, on all hosts.

XLA's CPU runtime carries out a program's operations concurrently, as soon as their operands are there; but small
programs one after the other, and an operation may have to wait for one that used its buffer before. Both follow an
order that XLA makes up, and that differs between hosts whose programs differ anywhere. If host 0 waits in one sum and
host 1 in another, neither ever comes to the other's. So each call of the primitive takes a value that the calls before
it produce when they are done: all hosts wait for their sums in the order of the program.

The buckets of one call are an exception, as they should travel side by side: large ones may start in any order. They
don't wait for each other's buffers, as what uses them is held behind all of them (hold.py); and with idle operations
beside them and buffers of their size XLA doesn't take the program for a small one.

Large gathers and scatters are another one, as they load opposite directions of the links. On CPU they have calls of
their own for their turns (cpu.py), and one doesn't wait until those of them right before it are done, only until they
have had their turns. On some hosts it may have to wait all the same, for memory. So it is *early*: rank 0 lets it begin
when all hosts have come to it (xla_ffi/host/order/early_sums.h).

What a loop or branch comes to must be the same on all hosts, but may not be. So beside the outermost one goes a visit,
which counts the executions of the program: a sum meets only those of the same execution.

It is the order of one straight piece of code: of a body of shard_map, of a loop or a branch. A jitted function inside
of it counts as the code that it stands for, a loop or branch as one call (docs/internals/identity.md).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.interpreters import mlir

from jax_passing._compat import jaxprs, lowered_modules, meshes, patches
from jax_passing.collective.naming.sites import Site
from jax_passing.collective.naming.sum_spec import SumSpec
from jax_passing.collective.runtime import host_calls, platforms
from jax_passing.collective.runtime.handlers import register_ffi
from jax_passing.host import scope as scopes

LARGE_BYTES = 1 << 16  # XLA's limit is 512; beside them one more round trip on a network doesn't count

EARLY_BYTES = 1 << 20  # beside them a message of each host to rank 0 doesn't count

_IDLE_CALLS = 8  # XLA runs up to eight operations one after the other, whatever their size

INT32 = jax.core.ShapedArray((), np.dtype(np.int32))


class BlockOrder:
    """The order of the sums in one block of a module. The last ones may have started side by side, as one group."""

    def __init__(self) -> None:
        self._execution: Any = None  # its number, if calls of Python have asked for it
        self._group: object = None
        self._before: Any = None  # what the group's calls had to wait for
        self._after: list[Any] = []  # what is there when they are done, or have had their turns
        self._had_turns: list[tuple[Any, Any]] = []  # of calls that may not be done: a result, and its type
        self._may_be_behind = False  # is the last call one beside which an early one may start?
        self._tokens: dict[Any, tuple[Any, Any]] = {}  # by result of a call: what is before and after the call
        self._shared: dict[object, Any] = {}  # what its calls have in common

    @classmethod
    def of(cls, ctx: mlir.LoweringRuleContext) -> "BlockOrder":
        """Returns the order of the block that is being lowered."""
        return lowered_modules.of_block(ctx, cls)

    def enter(self, ctx: mlir.LoweringRuleContext, site: Site, size_bytes: int, has_turns: bool = False) -> "Turn":
        """Gives a call its turn, behind those before it.

        Args:
          ctx: lowering context of the call.
          site: the sum that is called.
          size_bytes: total of its leaves.
          has_turns: a large gather or scatter has a call for its turn here.
        """
        # Alike on all hosts, whatever their devices are.
        one_way = site.moves in ("gather", "scatter") and size_bytes >= EARLY_BYTES
        one_way = one_way and meshes.lowering_mesh(ctx).all_manual
        is_early = one_way and self._may_be_behind
        # A call that blocks its device can't have others beside it.
        side_by_side = size_bytes >= LARGE_BYTES and not platforms.by_host_calls(ctx)
        group = (site.call_of_all_buckets, one_way) if side_by_side else object()
        if self._group != group or not self._after:
            self._before = _sum_of(ctx, self._after) if one_way and has_turns else self.done(ctx)
            self._group, self._after = group, []
        self._may_be_behind = one_way
        return Turn(self, self._before, len(self._after), one_way and has_turns, is_early)

    def leave(self, turn: "Turn", after: Any, results: Sequence[Any], avals: Sequence[Any] = ()) -> None:
        """Notes that the call with this turn is made, with results of these types: `after` is int32[] that is there
        when it is done, on GPU when it has started, or when it has had its turn in a call of its own."""
        self._after.append(after)
        self._tokens.update((result, (turn.before, after)) for result in results)
        if turn.is_call:
            self._had_turns.append((avals[0], results[0]))

    @property
    def last(self) -> list[Any]:
        """Returns the int32[] of the last calls, those of one group; all calls before come before them."""
        return self._after

    def done(self, ctx: mlir.LoweringRuleContext) -> Any:
        """Lowers int32[] that is there when all calls so far are done."""
        held = [hold_until(ctx, INT32, _zero(), *each) for each in self._had_turns]
        if held:
            self._group, self._after, self._had_turns = None, [_sum_of(ctx, [*self._after, *held])], []
        self._may_be_behind = False
        return _sum_of(ctx, self._after)

    def go_on_after(self, after: Any) -> None:
        """Has all further calls wait for this int32[], which is there when the calls so far are done."""
        self._group, self._after = None, [after]

    def execution(self, ctx: mlir.LoweringRuleContext) -> Any:
        """Returns int32[], the number of the execution, for calls of Python."""
        for order in lowered_modules.of_blocks_around(ctx):
            if order._execution is not None:
                return order._execution
        if in_control_flow():
            raise NotImplementedError(_OUTSIDE)
        self._execution = host_calls.begin(ctx)
        return self._execution

    def share(self, key: object, make: Callable[[], Any]) -> Any:
        """Returns what `make` made when this block first asked for that key: all its calls share it."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def tokens_of(self, values: Sequence[Any]) -> list[Any]:
        """Returns the int32[] that the calls wait for, and produce, whose results are among `values`.

        Who takes them as operands keeps XLA from giving their memory to others while the calls are under way.
        """
        return list(dict.fromkeys(token for value in values for token in self._tokens.get(value, ())))


class Turn(NamedTuple):
    """The turn of one call.

    Attributes:
      order: that of its block.
      before: int32[] to wait for.
      beside: how many calls of its group come before it.
      is_call: it is a call of its own.
      is_early: `SumSpec.early` of its sum.
    """

    order: BlockOrder
    before: Any
    beside: int
    is_call: bool
    is_early: bool


_OUTSIDE = (
    "a loop or branch with a sum over hosts in it stands outside of jax.shard_map. Where XLA calls Python for sums, as "
    "on a TPU, nothing would count its executions there: put the loop or branch inside of jax.shard_map."
)


@patches.LOOPS_AND_BRANCHES.uses
def _in_order_as_a_whole(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Has a loop or branch with sums inside start when the sums before it are done, and those after it wait."""

    def lower(ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Any:
        if not any(map(jaxprs.holds_sums, jaxprs.bodies(params))):
            return rule(ctx, *operands, **params)
        all_manual = meshes.lowering_mesh(ctx).all_manual
        order = BlockOrder.of(ctx)
        scope = scopes.of_session()
        counted = scope is not None and not scope.alone and not in_control_flow()
        if platforms.by_host_calls(ctx):
            if not all_manual:
                raise NotImplementedError(_OUTSIDE)
            order.execution(ctx)
            if counted:
                host_calls.count_executions(ctx)
        else:
            register_ffi()
            if counted:
                operands = _visit(ctx, operands, all_manual)
        smallest = _smallest(ctx.avals_in)
        if all_manual and order.last and smallest is not None:
            held = hold_until(ctx, ctx.avals_in[smallest], operands[smallest], INT32, order.done(ctx))
            operands = (*operands[:smallest], held, *operands[smallest + 1 :])
        with _inside():
            results = rule(ctx, *operands, **params)
        smallest = _smallest(ctx.avals_out)
        if smallest is not None and all_manual:
            order.go_on_after(hold_until(ctx, INT32, _zero(), ctx.avals_out[smallest], results[smallest]))
        return results

    return lower


_depth = threading.local()  # .of_thread: loops and branches around what is being lowered


def in_control_flow() -> bool:
    """Returns whether what is being lowered lies in a loop or branch."""
    return getattr(_depth, "of_thread", 0) > 0


@contextmanager
def _inside() -> Iterator[None]:
    _depth.of_thread = getattr(_depth, "of_thread", 0) + 1
    try:
        yield
    finally:
        _depth.of_thread -= 1


def _visit(ctx: mlir.LoweringRuleContext, operands: tuple[Any, ...], all_manual: bool) -> tuple[Any, ...]:
    """Tells of the execution, wherever XLA puts it: sums that come earlier tell of it, too. Returns the operands."""
    program = lowered_modules.program_name(ctx)
    spec = SumSpec(lowered_modules.module_ordinal(ctx, program), program).encode()
    if all_manual:
        _effect(ctx, "passing_visit", spec=spec)
        return operands
    # XLA refuses side effects in what it partitions, so there the call hangs on what XLA can't do without: the index of
    # a branch, or a scalar that counts iterations. (An array might be gathered from all devices for it.) If XLA finds
    # that a loop doesn't need it all the same, the sums are refused: xla_ffi/ffi/naming/instance.cc.
    avals: Sequence[Any] = ctx.avals_in
    for i, aval in enumerate(avals):
        if _is_plain(aval) and aval.ndim == 0 and aval.dtype.kind in "biu":
            own = ctx.replace(primitive=None, avals_in=(aval,), avals_out=(aval,))
            call = jax.ffi.ffi_lowering("passing_visit", operand_output_aliases={0: 0})
            (held,) = call(own, operands[i], spec=spec)
            return (*operands[:i], held, *operands[i + 1 :])
    return operands


def _smallest(avals: Sequence[Any]) -> int | None:
    """Returns the index of the array with the fewest bytes, of those that have any: XLA may have to copy it."""
    sizes = {i: aval.size * aval.dtype.itemsize for i, aval in enumerate(avals) if _is_plain(aval) and aval.size}
    return min(sizes, key=sizes.__getitem__, default=None)


def _is_plain(aval: Any) -> bool:
    return isinstance(aval, jax.core.ShapedArray) and isinstance(aval.dtype, np.dtype) and aval.dtype.itemsize > 0


def hold_until(ctx: mlir.LoweringRuleContext, aval: Any, value: Any, other_aval: Any, other: Any) -> Any:
    """Lowers `value` so that it is there only when `other` is."""
    if platforms.by_host_calls(ctx):
        return host_calls.hold(ctx, aval, value, other_aval, other)
    own = ctx.replace(primitive=None, avals_in=(aval, other_aval), avals_out=(aval,))
    (held,) = jax.ffi.ffi_lowering("passing_hold", operand_output_aliases={0: 0})(own, value, other)
    return held


def _zero() -> Any:
    return mlir.ir_constant(np.zeros((), np.int32))


def _sum_of(ctx: mlir.LoweringRuleContext, values: list[Any]) -> Any:
    """Lowers int32[] that is there when all of `values` are."""

    def total(*values: Any) -> Any:
        return sum(values, np.zeros((), np.int32)) if len(values) > 1 else values[0]

    if not values:
        return _zero()
    own = ctx.replace(primitive=None, avals_in=(INT32,) * len(values), avals_out=(INT32,))
    (result,) = mlir.lower_fun(total, multiple_results=False)(own, *values)
    return result


def make_larger(ctx: mlir.LoweringRuleContext, turn: Turn) -> None:
    """Lowers idle operations where calls may be under way together, so that XLA doesn't take the program for a small
    one."""

    def make() -> None:
        for _ in range(_IDLE_CALLS):
            _effect(ctx, "passing_hold")

    if (turn.beside == 1 or turn.is_call) and meshes.lowering_mesh(ctx).all_manual:
        turn.order.share(make_larger, make)


def _effect(ctx: mlir.LoweringRuleContext, target: str, **attributes: Any) -> None:
    """Lowers a call without operands and results, which XLA leaves where it is."""
    nothing = ctx.replace(primitive=None, avals_in=(), avals_out=())
    jax.ffi.ffi_lowering(target, has_side_effect=True)(nothing, **attributes)

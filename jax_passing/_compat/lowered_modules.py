"""While JAX lowers a module, this file tells, counts and keeps what belongs to it.

All contexts of one module share `shape_poly_state`, which goes when the lowering is over: so it is the key.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from jax.extend.mlir import ir
from jax.interpreters import mlir

from jax_passing._compat.meshes import lowering_mesh

_T = TypeVar("_T")


class SiteCounter:
    """Numbers the sites of one module as they are lowered."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.next_site = 0
        self.counts: dict[object, int] = {}


_of_thread = threading.local()  # .modules that each thread has lowered, as keys
_counters_lock = threading.Lock()  # JAX may lower on several threads
_counters: WeakKeyDictionary[Any, SiteCounter] = WeakKeyDictionary()
_module_counts: dict[str, int] = {}


def platforms(ctx: mlir.LoweringRuleContext) -> tuple[str, ...]:
    """Returns the platforms that it is lowered for: several, if JAX lowers one program for all of them."""
    return tuple(ctx.platforms or ctx.module_context.platforms)


def is_exported(ctx: mlir.LoweringRuleContext) -> bool:
    """Tells whether it is lowered for other processes."""
    return bool(ctx.module_context.lowering_parameters.for_export)


def program_name(ctx: mlir.LoweringRuleContext) -> str:
    """Returns the name of the program: `jit_step on 4 devices` for a jitted function `step`."""
    module_name = str(ctx.module_context.module.operation.attributes["sym_name"]).strip('"')
    count = lowering_mesh(ctx).device_count
    return f"{module_name} on {count} {'device' if count == 1 else 'devices'}"


def modules_of_thread() -> list[tuple[str, int]]:
    """Returns (program, ordinal) of all modules with sums that the calling thread has lowered."""
    return list(getattr(_of_thread, "modules", ()))


def module_ordinal(ctx: mlir.LoweringRuleContext, program: str) -> int:
    """Tells how many modules of that program this process lowered before this one."""
    with _counters_lock:
        return _counter(ctx, program).ordinal


def next_site(ctx: mlir.LoweringRuleContext, program: str, alike: object) -> tuple[int, int, int]:
    """Counts a site. Returns (how many modules of that program this process lowered before this one, how many sites
    this module had, how many of them were `alike`)."""
    with _counters_lock:
        counter = _counter(ctx, program)
        site = counter.next_site
        counter.next_site += 1
        nth = counter.counts.get(alike, 0)
        counter.counts[alike] = nth + 1
    return counter.ordinal, site, nth


def _counter(ctx: mlir.LoweringRuleContext, program: str) -> SiteCounter:
    key = ctx.module_context.shape_poly_state
    counter = _counters.get(key)
    if counter is None:
        counter = _counters[key] = SiteCounter(_module_counts.get(program, 0))
        _module_counts[program] = counter.ordinal + 1
    _of_thread.__dict__.setdefault("modules", {})[program, counter.ordinal] = None
    return counter


_of_blocks: WeakKeyDictionary[Any, list[tuple[Any, Any]]] = WeakKeyDictionary()  # by module


def of_block(ctx: mlir.LoweringRuleContext, make: Callable[[], _T]) -> _T:
    """Returns the first result of `make` in the block of operations that is being lowered now."""
    block = ir.InsertionPoint.current.block
    known: _T | None = _known_of(ctx, block)
    if known is not None:
        return known
    made = make()
    _of_blocks.setdefault(ctx.module_context.shape_poly_state, []).append((block, made))
    return made


def of_blocks_around(ctx: mlir.LoweringRuleContext) -> Iterator[Any]:
    """Yields what `of_block` made for this block and those around it whose values can be used in it, the innermost
    first."""
    block = ir.InsertionPoint.current.block
    while True:
        known = _known_of(ctx, block)
        if known is not None:
            yield known
        around = block.owner.operation
        if around.name in _ISOLATED:
            return
        block = around.block


_ISOLATED = ("builtin.module", "func.func", "sdy.manual_computation")  # operations in these use no values from outside


def _known_of(ctx: mlir.LoweringRuleContext, block: Any) -> Any:
    for known, value in reversed(_of_blocks.get(ctx.module_context.shape_poly_state, ())):
        if known == block:
            return value
    return None


_of_modules: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def of_module(ctx: mlir.LoweringRuleContext, make: Callable[[], _T]) -> _T:
    """Returns the first result of `make` in the module that is being lowered now."""
    key = ctx.module_context.shape_poly_state
    if key not in _of_modules:
        _of_modules[key] = make()
    made: _T = _of_modules[key]
    return made

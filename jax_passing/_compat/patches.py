"""This file lists all that the package changes of JAX in one table, and makes the changes.

`install` runs when a session begins or when one of our functions is first traced, whichever comes first; importing the
package changes nothing. No change is ever taken back: each leaves JAX as it was for programs without our sums. The
table says how JAX is changed; the replacements stand in the rooms above, which name them with `Patch.uses`.
docs/internals/patches.md has the table, too (tests/jax_passing/collective/test_patches.py).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
from jax._src import ad_checkpoint, core, custom_batching, custom_derivatives, pjit, shard_map, source_info_util
from jax._src.interpreters import ad as private_ad
from jax._src.interpreters import mlir as private_mlir
from jax._src.lax import parallel
from jax._src.lax.control_flow import conditionals, loops, solves
from jax._src.lib import version as jaxlib_version
from jax.interpreters import ad, mlir

from jax_passing._compat import inlined_calls, jax_collectives

_Ours = TypeVar("_Ours", bound=Callable[..., Any])

_lock = threading.RLock()  # several threads may trace at once
_installed = False


@dataclass(eq=False)
class Patch:
    """One change of JAX.

    Attributes:
      what: which of JAX's rules, functions or sets is changed.
      why: the failure without the change.
      until: when the change can go.
      change: makes the change, given `ours`.
      ours: JAX uses this from then on: mostly a function that takes JAX's own function and returns another one.
    """

    what: str
    why: str
    until: str
    change: Callable[[Any], None]
    ours: Any = None

    def uses(self, ours: _Ours) -> _Ours:
        """Decorates the function that replaces JAX's own. If the other changes are made already, so is this one."""
        with _lock:
            self.ours = ours
            if _installed:
                self.change(ours)
        return ours


def install() -> None:
    """Makes all changes of the table. Calls after the first one do nothing. Creates no backend of JAX."""
    global _installed
    if _installed:
        return
    with _lock:
        if not _installed:
            for patch in TABLE:
                if patch.ours is not None:  # else its room isn't imported yet
                    patch.change(patch.ours)
            _installed = True


# How each kind of change is made.


def _wrap_lowering(*primitives: Any) -> Callable[[Any], None]:
    def change(wrap: Callable[..., Any]) -> None:
        for primitive in primitives:
            mlir.register_lowering(primitive, wrap(private_mlir._lowerings[primitive].rule), cacheable=False)

    return change


def _wrap_transpose(primitive: Any) -> Callable[[Any], None]:
    def change(wrap: Callable[..., Any]) -> None:
        fancy = getattr(private_ad, "fancy_transposes", {})  # newer versions of JAX keep some rules there
        rules = fancy if primitive in fancy else ad.primitive_transposes
        rules[primitive] = wrap(rules[primitive])

    return change


def _mend_reduce_scatter(wrap: Callable[..., Any]) -> None:
    if jaxlib_version < (0, 12):
        for primitive in (parallel.reduce_scatter_p, parallel.unreduced_reduce_scatter_p):
            mlir.register_lowering(primitive, wrap(private_mlir._lowerings[primitive].rule), platform="cpu")


def _wrap_calls_of_executables(wrap: Callable[..., Any]) -> None:
    compiled: Any = jax.stages.Compiled
    compiled.__call__ = wrap(compiled.__call__)


_COLLECTIVES = (
    "all_gather", "all_gather_invariant", "all_gather_reduced", "all_to_all", "axis_index", "pbroadcast", "pmax",
    "pmin", "ppermute", "precv", "psend", "psum", "psum_invariant", "ragged_all_to_all", "reduce_scatter",
    "unreduced_psum", "unreduced_reduce_scatter",
)  # fmt: skip


def _watch_collectives(tell: Callable[[Any], None]) -> None:
    """Has JAX call `tell` with the axes of each collective that it traces, before that."""

    def watched(bind: Callable[..., Any]) -> Callable[..., Any]:
        def bind_with_trace(trace: Any, args: Any, avals: Any, params: Any, /) -> Any:
            tell(params["axes"] if "axes" in params else params["axis_name"])
            return bind(trace, args, avals, params)

        return bind_with_trace

    for name in _COLLECTIVES:
        for primitive in (getattr(parallel, name + suffix, None) for suffix in ("_p", "_start_p")):
            if primitive is not None:  # no version of JAX has all of them
                primitive.def_bind_with_trace(watched(primitive.bind_with_trace))
    source_info_util.register_exclusion(__file__)  # JAX looks for the user's line, which this is not


# The table.

JIT = Patch(
    what="The lowering of `jit`",
    why="JAX lowers a jitted function once, however often a program calls it, and XLA makes the copies: nothing would "
    "tell their sums apart, nor put them in order. A function with sums is lowered where it is called.",
    until="When JAX tells a primitive's lowering the calls around it, and orders its effects under `shard_map`.",
    change=_wrap_lowering(pjit.jit_p),
    ours=inlined_calls.lower_jit,
)
CALLS = Patch(
    what="The lowering of `core.call_p` and `core.closed_call_p`",
    why="As for `jit`: these are calls that JAX makes itself, as in the body of a scan.",
    until="As for `jit`.",
    change=_wrap_lowering(core.call_p, core.closed_call_p),
    ours=inlined_calls.lower_call,
)
UNCACHEABLE = Patch(
    what="The set `mlir._uncacheable_primitives`: `scan`, `linear_solve`, `remat`, `custom_vmap`, `custom_jvp_call` "
    "and `shard_map` are added",
    why="JAX would lower each of these once for several equal calls, as it does with a jitted function.",
    until="As for `jit`.",
    change=private_mlir._uncacheable_primitives.update,
    ours={
        loops.scan_p,
        solves.linear_solve_p,
        ad_checkpoint.remat_p,
        custom_batching.custom_vmap_p,
        custom_derivatives.custom_jvp_call_p,
        shard_map.shard_map_p,
    },
)
LOOPS_AND_BRANCHES = Patch(
    what="The lowering of `while` (which `scan` becomes) and `cond`",
    why="XLA's CPU runtime carries out operations as soon as their operands are there: on two hosts a loop with sums "
    "and a sum beside it could start in different orders, and both would wait for ever.",
    until="When JAX lets a primitive have an ordered effect inside `shard_map`, and XLA keeps that order at run time.",
    change=_wrap_lowering(loops.while_p, conditionals.cond_p),
)
REDUCE_SCATTER = Patch(
    what="The lowering of `reduce_scatter` and `unreduced_reduce_scatter` on CPU, where collectives go over gloo",
    why="The reduce-scatter of gloo overwrites its operand while it is being sent: where a device's results leave it "
    "slower than others come in, rank 0 gets a wrong end of its part, without any error.",
    until="When the oldest jaxlib that we support is 0.12.0: from there on the patch does nothing.",
    change=_mend_reduce_scatter,
    ours=jax_collectives.lower_reduce_scatter,
)
CAST = Patch(
    what="The transpose of `pvary`, the cast from equal to varying under `check_vma=True`",
    why="JAX sums over the devices of this host's mesh. Where the axis continues over the hosts the gradient would "
    "miss theirs.",
    until="When a mesh can have an axis that JAX doesn't own, or libraries call `jax_passing.pvary` themselves.",
    change=_wrap_transpose(core.pvary_p),
)
TRANSPOSE_OF_PSUM = Patch(
    what="The transpose of `psum_invariant`, which `jax.lax.psum` is under `check_vma=True`",
    why="Its gradient is right for this host alone. Where the axis continues over the hosts UsageError says so.",
    until="As for `pvary`.",
    change=_wrap_transpose(parallel.psum_invariant_p),
)
TRANSPOSE_OF_SHARD_MAP = Patch(
    what="The transpose of `shard_map`",
    why="With `check_vma=False` JAX sums the gradients of operands `P()` over this host's devices. Over an axis that "
    "continues over the hosts UsageError says so; and `pvary` learns that JAX would sum once more.",
    until="When JAX removes `check_vma=False`, or as for `pvary`.",
    change=_wrap_transpose(shard_map.shard_map_p),
)
COLLECTIVES = Patch(
    what="The functions that trace the primitives of collectives (set by JAX's `def_bind_with_trace`), and "
    "`source_info_util`'s list of files which hold no user's lines",
    why="The collectives of `jax.lax` stay inside this host where an axis continues over the hosts, and results look "
    "right. InsideHostWarning says so, in the line that calls them.",
    until="When a mesh can have an axis that JAX doesn't own.",
    change=_watch_collectives,
)
CALLS_OF_EXECUTABLES = Patch(
    what="`jax.stages.Compiled.__call__`",
    why="An executable that was compiled ahead of time goes past the caches of `jax.jit`, which keep the programs of "
    "several threads' streams apart. Called in another stream, its sums would meet others'.",
    until="When JAX checks the context that an executable was compiled in when it is called.",
    change=_wrap_calls_of_executables,
)
END_OF_COMPILATION = Patch(
    what="The listeners of `jax.monitoring`: one is added (public)",
    why="Hosts compare what XLA made of a program with loops around its sums. The event comes on the thread that "
    "compiled, after compilation, and nothing else tells of that.",
    until="When XLA's handlers are told which module they are part of.",
    change=jax.monitoring.register_event_duration_secs_listener,
)

TABLE = (
    JIT,
    CALLS,
    UNCACHEABLE,
    LOOPS_AND_BRANCHES,
    REDUCE_SCATTER,
    CAST,
    TRANSPOSE_OF_PSUM,
    TRANSPOSE_OF_SHARD_MAP,
    COLLECTIVES,
    CALLS_OF_EXECUTABLES,
    END_OF_COMPILATION,
)

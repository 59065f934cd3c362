"""How jitted functions, loops and branches inside of programs are lowered.

JAX lowers a jitted function once, however often a program calls it, and XLA makes the copies: nothing would tell their
sums apart, nor put them in order. So a function with sums is lowered where it is called, line by line. Importing this
module tells JAX so.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax._src import ad_checkpoint, core, custom_batching, custom_derivatives, named_sharding, pjit, shard_map
from jax._src.interpreters import mlir as private_mlir
from jax._src.lax.control_flow import conditionals, loops, solves
from jax.interpreters import mlir

from jax_passing._compat.jaxprs import holds_sums
from jax_passing._compat.stacks import Frame, frames_of

_of_thread = threading.local()  # .calls, the stacks of the inner jitted calls around what is being lowered; .shared


def calls_around() -> list[list[Frame]]:
    """The stacks of the calls of jitted functions around what is being lowered, the innermost first."""
    return list(reversed(getattr(_of_thread, "calls", ())))


def in_shared_function() -> bool:
    """Whether what is being lowered is part of a function that the module may call several times."""
    return getattr(_of_thread, "shared", 0) > 0


def wrap_lowering_of_control_flow(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Of loops (scan becomes one) and branches: (context, *operands, **parameters)."""
    for primitive in (loops.while_p, conditionals.cond_p):
        mlir.register_lowering(primitive, wrap(private_mlir._lowerings[primitive].rule), cacheable=False)


def _lower_jit(ctx: mlir.LoweringRuleContext, *operands: Any, jaxpr: Any, **params: Any) -> Any:
    if not holds_sums(jaxpr):
        return pjit._pjit_lowering(ctx, *operands, jaxpr=jaxpr, **params)
    calls = _of_thread.__dict__.setdefault("calls", [])
    calls.append(frames_of(ctx.traceback))
    try:
        if any(not isinstance(each, named_sharding.UnspecifiedValue) for each in _shardings(params)):
            # What it says of shardings counts: copies, which look alike, are told apart by the module's fingerprint.
            _of_thread.shared = getattr(_of_thread, "shared", 0) + 1
            try:
                return pjit._pjit_lowering(ctx, *operands, jaxpr=jaxpr, **params)
            finally:
                _of_thread.shared -= 1
        return _lower_lines(ctx, operands, jaxpr)
    finally:
        calls.pop()


def _shardings(params: Mapping[str, Any]) -> list[Any]:
    return [*params["in_shardings"], *params["out_shardings"]]


def _lower_call(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The same for calls that JAX makes of its own, as in the body of a scan."""

    def lower(ctx: mlir.LoweringRuleContext, *operands: Any, call_jaxpr: Any, **params: Any) -> Any:
        if holds_sums(call_jaxpr):
            return _lower_lines(ctx, operands, call_jaxpr)
        return rule(ctx, *operands, call_jaxpr=call_jaxpr, **params)

    return lower


def _lower_lines(ctx: mlir.LoweringRuleContext, operands: Sequence[Any], jaxpr: Any) -> Any:
    body = getattr(jaxpr, "jaxpr", jaxpr)
    results, tokens = private_mlir.jaxpr_subcomp(
        ctx.module_context,
        body,
        ctx.name_stack,
        ctx.tokens_in,
        private_mlir.ir_consts(getattr(jaxpr, "consts", ()), [variable.aval for variable in body.constvars]),
        *operands,
        dim_var_values=ctx.dim_var_values,
        const_lowering=ctx.const_lowering,
        outer_traceback=ctx.traceback,
    )
    ctx.set_tokens_out(tokens)
    return results


mlir.register_lowering(pjit.jit_p, _lower_jit, cacheable=False)
for _primitive in {core.call_p, core.closed_call_p}:
    mlir.register_lowering(_primitive, _lower_call(private_mlir._lowerings[_primitive].rule), cacheable=False)

# As a jitted function, each of these would be lowered once for several equal calls.
private_mlir._uncacheable_primitives.update(
    {
        loops.scan_p,
        solves.linear_solve_p,
        ad_checkpoint.remat_p,
        custom_batching.custom_vmap_p,
        custom_derivatives.custom_jvp_call_p,
        shard_map.shard_map_p,
    }
)

"""Jitted functions with sums are lowered where they are called, operation by operation (patches.py says why)."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax._src import named_sharding
from jax._src.interpreters import mlir as private_mlir
from jax.interpreters import mlir

from jax_passing._compat.jaxprs import holds_sums
from jax_passing._compat.stacks import Frame, frames_of

_of_thread = threading.local()  # .calls, the stacks of the inner jitted calls around what is being lowered; .shared


def calls_around() -> list[list[Frame]]:
    """Returns the stacks of the calls of jitted functions around what is being lowered, the innermost first."""
    return list(reversed(getattr(_of_thread, "calls", ())))


def in_shared_function() -> bool:
    """Tells whether the operation that is being lowered is in a function that the module may call several times."""
    return getattr(_of_thread, "shared", 0) > 0


def lower_jit(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a rule that lowers a jitted function with sums where it is called; `rule`, JAX's own, lowers others."""

    def lower(ctx: mlir.LoweringRuleContext, *operands: Any, jaxpr: Any, **params: Any) -> Any:
        if not holds_sums(jaxpr):
            return rule(ctx, *operands, jaxpr=jaxpr, **params)
        calls = _of_thread.__dict__.setdefault("calls", [])
        calls.append(frames_of(ctx.traceback))
        try:
            if all(isinstance(each, named_sharding.UnspecifiedValue) for each in _shardings(params)):
                return _lower_body(ctx, operands, jaxpr)
            # The call's shardings count, so it stays. Its copies look alike: the module's fingerprint tells them apart.
            _of_thread.shared = getattr(_of_thread, "shared", 0) + 1
            try:
                return rule(ctx, *operands, jaxpr=jaxpr, **params)
            finally:
                _of_thread.shared -= 1
        finally:
            calls.pop()

    return lower


def _shardings(params: Mapping[str, Any]) -> list[Any]:
    return [*params["in_shardings"], *params["out_shardings"]]


def lower_call(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Does the same for calls that JAX makes itself, as in the body of a scan."""

    def lower(ctx: mlir.LoweringRuleContext, *operands: Any, call_jaxpr: Any, **params: Any) -> Any:
        if holds_sums(call_jaxpr):
            return _lower_body(ctx, operands, call_jaxpr)
        return rule(ctx, *operands, call_jaxpr=call_jaxpr, **params)

    return lower


def _lower_body(ctx: mlir.LoweringRuleContext, operands: Sequence[Any], jaxpr: Any) -> Any:
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

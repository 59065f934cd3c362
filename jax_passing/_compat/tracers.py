"""The program that is being traced, and what it computes a value from, as far as JAX tells."""

from collections.abc import Callable
from typing import Any

import jax
from jax._src import core
from jax._src.lax import parallel

from jax_passing._compat.jaxprs import bodies, holds_sums, summing

_LOOKED_AT_MAX = 100


def tracing() -> bool:
    """Whether the calling code is being traced or transformed, so that no values are known."""
    return not core.trace_state_clean()


def current_trace() -> Any:
    """What the program that is being traced belongs to: the same for all of its lines; None outside of jit and such."""
    trace = core.trace_ctx.trace
    while trace is not None and not hasattr(trace, "frame"):
        trace = getattr(trace, "parent_trace", None)
    return trace


def is_constant(tracer: Any) -> bool:
    """Whether the program makes this of nothing but constants; False if that is long to tell, or another JAX doesn't
    tell it."""
    tracer = _without_vmap(tracer)
    if not isinstance(tracer, jax.core.Tracer):
        return True
    waiting: list[Any] = [tracer]
    seen = 0
    while waiting:
        one = waiting.pop()
        seen += 1
        equation = getattr(one, "parent", None)
        if equation is not None:
            waiting += getattr(equation, "in_tracers", (None,))
        elif not isinstance(getattr(one, "val", None), core.Literal) and not _is_closed_over(one):
            return False
        if seen > _LOOKED_AT_MAX:
            return False
    return True


def derivative_has_sums(tracer: Any) -> bool:
    """Whether a sum, ours or JAX's, is among what the derivative of this is computed from; False outside of
    derivatives, or if another JAX doesn't tell."""
    sums = {*summing, parallel.psum_p}
    return comes_from(
        getattr(tracer, "tangent", None),
        lambda equation: equation.primitive in sums or any(map(holds_sums, bodies(equation.params))),
    )


def comes_from(tracer: Any, is_meant: Callable[[Any], bool]) -> bool:
    """Whether such an equation is among those that the program being traced makes this from."""
    waiting, seen = [_without_vmap(tracer)], set()
    while waiting:
        equation = getattr(waiting.pop(), "parent", None)
        if equation is None or id(equation) in seen or not hasattr(equation, "params"):
            continue
        seen.add(id(equation))
        if is_meant(equation):
            return True
        waiting += getattr(equation, "in_tracers", ())
    return False


def _without_vmap(tracer: Any) -> Any:
    """What a tracer of vmap stands for."""
    while hasattr(tracer, "batch_dim"):
        tracer = tracer.val
    return tracer


def _is_closed_over(tracer: Any) -> bool:
    frame = getattr(getattr(tracer, "_trace", None), "frame", None)
    return getattr(tracer, "val", None) in getattr(frame, "constvar_to_val", ())

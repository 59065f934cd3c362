"""These functions tell which jaxprs sum, and find the inputs of a value in one that is being traced.

Another version of JAX may tell less of a jaxpr that is being traced: then values are no constants, and come from
nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import jax
from jax._src import core
from jax._src.lax import parallel

summing: set[Any] = set()
"""These primitives are sums, or are made of them when they are lowered."""

_LOOKED_AT_MAX = 100  # equations

_with_sums: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def holds_sums(jaxpr: Any) -> bool:
    """Tells whether this jaxpr, or any inside of it, calls one of those primitives."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    found = _with_sums.get(jaxpr)
    if found is None:
        found = any(
            equation.primitive in summing or any(map(holds_sums, bodies(equation.params))) for equation in jaxpr.eqns
        )
        _with_sums[jaxpr] = found
    return found


def bodies(params: Mapping[str, Any]) -> list[Any]:
    """Returns the jaxprs inside of an equation."""
    return list(core.jaxprs_in_params(dict(params)))


# Jaxprs that are being traced.


def tracing() -> bool:
    """Tells whether the calling code is being traced or transformed, so that no values are known."""
    return not core.trace_state_clean()


def current_trace() -> Any:
    """Returns the identity of the jaxpr that is being traced, from line to line; None outside of jit and such."""
    trace = core.trace_ctx.trace
    while trace is not None and not hasattr(trace, "frame"):
        trace = getattr(trace, "parent_trace", None)
    return trace


def is_constant(tracer: Any) -> bool:
    """Tells whether the jaxpr makes this of nothing but constants; False if that takes long."""
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
    """Tells whether the derivative of this is computed from a sum, ours or JAX's; False outside of derivatives."""
    sums = {*summing, parallel.psum_p}
    return comes_from(
        getattr(tracer, "tangent", None),
        lambda equation: equation.primitive in sums or any(map(holds_sums, bodies(equation.params))),
    )


def comes_from(tracer: Any, is_meant: Callable[[Any], bool]) -> bool:
    """Tells whether such an equation is among those that the jaxpr being traced makes this from."""
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
    """Returns the batched value of a tracer of vmap."""
    while hasattr(tracer, "batch_dim"):
        tracer = tracer.val
    return tracer


def _is_closed_over(tracer: Any) -> bool:
    frame = getattr(getattr(tracer, "_trace", None), "frame", None)
    return getattr(tracer, "val", None) in getattr(frame, "constvar_to_val", ())

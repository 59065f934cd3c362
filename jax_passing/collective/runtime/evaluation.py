"""Evaluates primitives outside of jit: each combination of parameters is a program of its own."""

import functools
from typing import Any

import jax
from jax.extend.core import Primitive


@functools.lru_cache(maxsize=1024)
def _jitted(primitive: Primitive, **params: Any) -> Any:
    def run(*operands: Any) -> Any:
        return primitive.bind(*operands, **params)

    run.__name__ = primitive.name
    return jax.jit(run)


def evaluate(primitive: Primitive, *operands: Any, **params: Any) -> Any:
    """Runs a program of this primitive alone. As JAX's own primitives do, it compiles even under jax.disable_jit: that
    would call the primitive again, which would end up here."""
    with jax.disable_jit(False):
        return _jitted(primitive, **params)(*operands)

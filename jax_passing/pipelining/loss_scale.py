"""Takes the dynamic loss scales of Flax and jmp."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_passing.errors import UsageError


def scale_of(scale: Any) -> tuple[float, Callable[[bool], Any]]:
    """Returns the number of a loss scale, and a function that makes the next scale of whether gradients are finite.

    Raises UsageError if it is neither one of Flax nor one of jmp.
    """
    if hasattr(scale, "loss_scale") and hasattr(scale, "adjust"):
        return float(scale.loss_scale), lambda is_finite: scale.adjust(jnp.array(is_finite))
    if hasattr(scale, "scale") and hasattr(scale, "value_and_grad"):
        return float(scale.scale), lambda is_finite: _next(scale, jnp.float32(1 if is_finite else jnp.nan))
    raise UsageError(
        f"scale is {scale!r}; it has to be a DynamicScale of Flax (flax.training.dynamic_scale), or a loss scale of "
        "jmp, which says how it changes: DynamicScale() begins at 65536."
    )


@jax.jit
def _next(scale: Any, gradient: Any) -> Any:
    """Lets Flax change its scale: it only does so where it differentiates, so here is a function with that gradient."""
    return scale.value_and_grad(lambda x: x * gradient)(jnp.float32(1)).dynamic_scale

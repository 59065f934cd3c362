"""The platforms on which programs with sums over hosts run, and how XLA reaches this process there."""

import functools
from collections.abc import Callable
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import mlir

from jax_passing._compat import lowered_modules
from jax_passing._compat.stacks import warn_in_users_line
from jax_passing.errors import ExperimentalWarning

BY_FFI = ("cpu", "cuda")  # XLA calls our handlers
BY_HOST_CALLS = ("tpu",)  # XLA can call Python alone
_NEVER_RUN_ON = {"cuda": "GPU", "tpu": "TPU"}


def by_host_calls(ctx: mlir.LoweringRuleContext) -> bool:
    """Returns whether the program that is being lowered reaches this process by calls of Python.

    Raises:
      NotImplementedError: it is lowered for such a platform and for others at once.
    """
    platforms = lowered_modules.platforms(ctx)
    if not any(platform in BY_HOST_CALLS for platform in platforms):
        return False
    _only(platforms)
    return True


def by_ffi_on_cpu(ctx: mlir.LoweringRuleContext) -> bool:
    """Returns whether the program that is being lowered is for CPUs alone, and reaches this process by our handlers."""
    return lowered_modules.platforms(ctx) == ("cpu",) and "cpu" not in BY_HOST_CALLS


def _only(platforms: tuple[str, ...]) -> str:
    """Returns the only one of them."""
    if len(platforms) > 1:
        raise NotImplementedError(
            f"A program with sums over hosts is lowered for {' and '.join(platforms)} at once. It calls back into this "
            "process, each platform in a way of its own: lower it for one platform at a time."
        )
    return platforms[0]


rules: dict[Primitive, dict[str, Callable[..., Any]]] = {}
"""How each of our primitives is lowered on each platform where it can be. (The tests change it.)"""


def register_lowering(primitive: Primitive, **by_platform: Callable[..., Any]) -> None:
    """Tells JAX how to lower a primitive, by one rule for all platforms: given one for each, JAX 0.10 fails with a
    TypeError of its own where a program is lowered for several at once.

    That rule raises NotImplementedError there, and on platforms that have none; it warns (ExperimentalWarning) once for
    each platform that has never run it.
    """
    rules[primitive] = by_platform

    def lower(ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Any:
        platform = _only(lowered_modules.platforms(ctx))
        rule = rules[primitive].get(platform)
        if rule is None:
            raise NotImplementedError(
                f"jax_passing can't sum over hosts on the platform {platform!r}. It can on "
                f"{', '.join(BY_FFI + BY_HOST_CALLS)}: put the arrays on devices of one of these (jax.device_put, "
                "or a mesh of jax.devices('cpu'))."
            )
        results = rule(ctx, *operands, **params)
        if platform in _NEVER_RUN_ON:
            _warn_of(_NEVER_RUN_ON[platform])
        return results

    # Each call is lowered by itself: with JAX's cache, equal calls would share a site.
    mlir.register_lowering(primitive, lower, cacheable=False)


@functools.cache  # once, unless a filter makes it an exception: then each time
def _warn_of(device: str) -> None:
    warn_in_users_line(
        ExperimentalWarning,
        f"This program sums over hosts on a {device}. No {device} has ever run this part of jax_passing, so it is "
        "experimental: compare its sums with numpy's before you rely on them, and report what you see. "
        "warnings.simplefilter('ignore', jax_passing.errors.ExperimentalWarning) says that you know.",
    )

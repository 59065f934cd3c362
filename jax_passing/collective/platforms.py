"""On which platforms programs with sums over hosts run, and how XLA reaches this process there."""

from typing import Any, NoReturn

from jax.interpreters import mlir

from jax_passing._compat import lowered_modules

BY_FFI = ("cpu", "cuda")  # XLA calls our handlers
BY_HOST_CALLS = ("tpu",)  # XLA can call Python alone


def by_host_calls(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether the program that is being lowered reaches this process by calls of Python.

    Raises:
      NotImplementedError: it is lowered for such a platform and for others at once.
    """
    platforms = lowered_modules.platforms(ctx)
    if not any(platform in BY_HOST_CALLS for platform in platforms):
        return False
    if len(platforms) > 1:
        raise NotImplementedError(
            f"A program with sums over hosts is lowered for {' and '.join(platforms)} at once. It calls back into this "
            "process, each platform in a way of its own: lower it for one platform at a time."
        )
    return True


def lower_elsewhere(ctx: mlir.LoweringRuleContext, *_: Any, **__: Any) -> NoReturn:
    """JAX's rule for our primitives on all other platforms."""
    raise NotImplementedError(
        f"jax_passing can't sum over hosts on the platform {' or '.join(lowered_modules.platforms(ctx))!r}. It can on "
        f"{', '.join(BY_FFI + BY_HOST_CALLS)}: put the arrays on devices of one of these (jax.device_put, or a mesh "
        "of jax.devices('cpu'))."
    )

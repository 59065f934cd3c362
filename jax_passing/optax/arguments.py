"""This file checks the numbers that transformations are made with."""

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, TypeVar, cast

import jax
import optax

from jax_passing.errors import ConfigError, UnvaryingInputError

_Update = TypeVar("_Update", bound=Callable[..., Any])
_IN_CHAINS = ("all_reduce", "compressed_psum", "powersgd")


def check_count(function: str, name: str, value: object, lowest: int, meaning: str) -> None:
    """Raises ConfigError if `value`, the argument `name` of `function`, isn't a whole number from `lowest` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise ConfigError(f"{function}({name}={value!r}): expected a whole number, {lowest} or more. {meaning}")


def check_params(function: str, params: object) -> None:
    """Raises ConfigError if a training step gave no parameters to `update`."""
    if params is None:
        raise ConfigError(
            f"{function} needs the parameters at every step: write optimizer.update(gradients, state, params)."
        )


def named_by(**arguments: object) -> AbstractContextManager[Any]:
    """Returns a context in which the names of sums say these arguments.

    So hosts that have other ones raise ProgramMismatchError. Else their sums would meet at different steps: parameters
    would drift apart, or a host would wait for a sum that the others never come to.
    """
    return jax.named_scope(", ".join(f"{name}={value}" for name, value in arguments.items()))


def not_in_multi_steps(function: str, *, sums_stay: bool) -> Callable[[_Update], _Update]:
    """Decorates the `update` of `function`, which raises ConfigError where optax.MultiSteps around it can't work.

    MultiSteps has accumulators of each device's own gradients, which JAX's types don't let into `shard_map` and out of
    it as a state. And it drops the state after most steps, so that nobody would finish sums that start there.

    Args:
      function: the transformation.
      sums_stay: whether its state has sums on their way.
    """

    def refused() -> ConfigError:
        drops = "drops the state after most steps, and with it sums that are on their way"
        adds_up = "adds up each device's own gradients, which can't be a state under shard_map(check_vma=True)"
        behind = f"optax.chain({function}(...), optax.MultiSteps(...).gradient_transformation())"
        inside = f"{function}(optax.MultiSteps(...), ...)"
        return ConfigError(
            f"optax.MultiSteps around {function} {drops if sums_stay else adds_up}. Put it behind the sum: "
            f"{behind if function in _IN_CHAINS else inside}. To send one sum for several small steps, add up "
            "gradients before you call update."
        )

    def decorate(update: _Update) -> _Update:
        @functools.wraps(update)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if sums_stay and _in_multi_steps():
                raise refused()
            try:
                return update(*args, **kwargs)
            except UnvaryingInputError:
                if _in_multi_steps():
                    raise refused() from None
                raise

        return cast(_Update, checked)

    return decorate


def _in_multi_steps() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "update" and isinstance(frame.f_locals.get("self"), optax.MultiSteps):
            return True
        frame = frame.f_back
    return False

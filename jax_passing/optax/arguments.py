"""This file checks the numbers that transformations are made with."""

from contextlib import AbstractContextManager
from typing import Any

import jax

from jax_passing.errors import ConfigError


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

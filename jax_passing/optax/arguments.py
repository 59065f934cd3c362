"""This file checks the numbers that transformations are made with."""

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

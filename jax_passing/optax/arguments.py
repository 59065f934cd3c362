"""This file checks the numbers that transformations are made with."""

from typing import Any

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


def options_of(wire: str | None, strategy: str | None, bucket_bytes: int | None) -> dict[str, Any]:
    """Returns what the user said of how sums travel, as options of `psum` and `psum_start`."""
    given = {"wire": wire, "strategy": strategy, "bucket_bytes": bucket_bytes}
    return {name: value for name, value in given.items() if value is not None}

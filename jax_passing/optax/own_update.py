"""`OwnUpdate` is a device's part of an update, which can be added to its parameters alone."""

from collections.abc import Sequence
from typing import Any, NoReturn

import jax

from jax_passing.errors import ConfigError

_REFUSED: Sequence[str] = (
    "abs", "add", "floordiv", "ge", "gt", "le", "lt", "matmul", "mod", "mul", "neg", "pow", "rmatmul", "rmul", "rpow",
    "rsub", "rtruediv", "sub", "truediv",
)  # fmt: skip


class OwnUpdate:
    """This device's part of an update, [c], which only an addition to parameters takes, as `optax.apply_updates` makes.

    It is no array on purpose. A transformation behind `sharded` in a chain would see one device's elements as if they
    were all: a norm would be another one on each device, and noise the same, without any error.

    Raises:
      ConfigError: it is used otherwise.
    """

    def __init__(self, own: jax.Array):
        self.own = own

    def __radd__(self, parameter: Any) -> Any:
        return parameter + self.own

    def __repr__(self) -> str:
        return _MESSAGE

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Python and JAX ask for these to find out what this is
            raise AttributeError(name)
        raise ConfigError(_MESSAGE)


def _refuse(*_: Any) -> NoReturn:
    raise ConfigError(_MESSAGE)


for _name in _REFUSED:
    setattr(OwnUpdate, f"__{_name}__", _refuse)

_MESSAGE = (
    "sharded: the updates of parts are of this device alone, so that a norm, a mean or noise made of them would be "
    "wrong. Give them to optax.apply_updates, and put other transformations inside, as sharded(optax.chain(...), ...), "
    "which adds up the numbers of all devices. To look at the updates, put them together first, by "
    "jax_passing.optax.gather within the axis."
)

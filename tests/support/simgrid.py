"""Leaves out tests that need SimGrid where there is none for this Python. On Debian 12 `tests/check.sh` installs it."""

import pytest

from jax_passing.errors import ConfigError
from jax_passing.scaling.engine import find_simgrid


def _missing() -> str:
    try:
        find_simgrid()
    except ConfigError as error:
        return str(error)
    return ""


needs_simgrid = pytest.mark.skipif(bool(_missing()), reason=_missing() or "SimGrid is there")

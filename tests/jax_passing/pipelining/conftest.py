"""What all tests of pipelines share."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _compiled_fast():
    """What runs so rarely takes longer to optimise than to run."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)

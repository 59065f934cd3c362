"""Optax needs conversions of dtypes that other tests forbid."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _promotes(compiled_fast):
    with jax.numpy_dtype_promotion("standard"):
        yield

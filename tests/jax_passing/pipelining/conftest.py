"""A fixture for all tests of pipelines."""

import pytest


@pytest.fixture(autouse=True)
def _compiled_fast(compiled_fast):
    pass

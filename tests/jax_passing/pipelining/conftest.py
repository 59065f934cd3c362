"""What all tests of pipelines share."""

import pytest


@pytest.fixture(autouse=True)
def _compiled_fast(compiled_fast):
    pass

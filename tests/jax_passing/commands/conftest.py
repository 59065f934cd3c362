"""Fixtures of the command line's tests."""

import pytest


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        path.write_text("import os, signal, sys, time\nrank = int(os.environ['JAX_PASSING_RANK'])\n" + text)
        return str(path)

    return write

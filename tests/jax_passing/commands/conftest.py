"""Fixtures of the command line's tests."""

import pytest

from jax_passing.commands.cli import main


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        path.write_text("import os, signal, sys, time\nrank = int(os.environ['JAX_PASSING_RANK'])\n" + text)
        return str(path)

    return write


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command; returns its exit code or its message, and its output."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["jax-passing", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capsys.readouterr().out

    for name in ("SWITCH", "KEY_FILE", "JOB"):
        monkeypatch.delenv(f"JAX_PASSING_{name}", raising=False)
    return run

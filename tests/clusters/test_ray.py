"""A real Ray: workers of its JaxTrainer on CPUs, and actors, sum by one call, or hear that they would train alone."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from support.jobs.cluster import Switch

pytest.importorskip("ray", reason="Ray isn't installed: `tests/check.sh clusters` does that")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Returns the text that each worker has written, by the name of the case and its rank."""
    folder = tmp_path_factory.mktemp("ray")
    switch = Switch()
    short = tempfile.TemporaryDirectory()  # of Ray's sockets, whose addresses have at most 107 characters
    try:
        program = Path(__file__).with_name("ray_workers.py")
        command = [sys.executable, str(program), str(folder), switch.address, short.name]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "RAY_TRAIN_V2_ENABLED": "1"}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    finally:
        switch.stop()
        short.cleanup()
    assert ended.returncode == 0, ended.stderr[-4000:]
    return {path.name: path.read_text() for path in folder.glob("*-[01]")}


@pytest.mark.parametrize("case", ["ray", "actor"])
@pytest.mark.parametrize("rank", [0, 1])
def test_workers_sum(told, case, rank):
    """Workers of Ray Train start a switch for themselves; actors are given theirs."""
    assert told[f"{case}-{rank}"] == "sum 3, world 2, switch True\n"


def test_the_switch_has_ended_with_the_workers(told):
    left = [one.info["cmdline"] for one in psutil.process_iter(["cmdline", "ppid"]) if one.info["ppid"] == 1]
    assert not [line for line in left if line and "jax_passing" in line and "switch" in line]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("plain", r"ConfigError: A world of 2 ranks (Ray Train's context) needs a switch."),
        ("for_jax", r"ConfigError: Ray Train has 2 workers, but JAX knows this one only, and would train by itself"),
        ("alone", r"ConfigError: jax_passing.init in an actor of Ray's: nothing names a switch"),
        ("not_train", r"ConfigError: jax_passing.ray.init is for the function that workers of Ray Train run"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_who_would_train_alone_is_told(told, case, message, rank):
    assert message in told[f"{case}-{rank}"]

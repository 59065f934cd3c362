"""The example with flax.nnx trains on two hosts, with BatchNorm of each device's rows and of all."""

import re
from pathlib import Path

import pytest

from support.jobs.cluster import PASSING, Process, finish

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_nnx.py"


@pytest.mark.parametrize("statistics", ["own", pytest.param("all", marks=pytest.mark.slow)])
def test_two_hosts_train_one_model(statistics: str) -> None:
    command = [*PASSING, "run", "--hosts", "2", "--devices-per-host", "2", str(EXAMPLE), "--statistics", statistics]
    run = Process(command)
    try:
        finish([run])
    finally:
        run.stop()
    reports = re.findall(r"^\[rank \d\] rank \d: (loss [\d.]+, accuracy ([\d.]+)%)$", run.text, re.MULTILINE)
    assert len(reports) == 2, run.text
    assert len(set(reports)) == 1  # the same model on both
    assert float(reports[0][1]) > 85

"""The example with flax.nnx trains on two hosts."""

import re
from pathlib import Path

from support.jobs.cluster import PASSING, Process, finish

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_nnx.py"


def test_two_hosts_train_one_model() -> None:
    run = Process([*PASSING, "run", "--hosts", "2", "--devices-per-host", "2", str(EXAMPLE)])
    try:
        finish([run])
    finally:
        run.stop()
    reports = re.findall(r"^\[rank \d\] rank \d: (loss [\d.]+, accuracy ([\d.]+)%)$", run.text, re.MULTILINE)
    assert len(reports) == 2, run.text
    assert len(set(reports)) == 1  # the same model on both
    assert float(reports[0][1]) > 85

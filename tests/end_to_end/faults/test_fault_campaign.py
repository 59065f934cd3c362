"""A little of the fault campaign: fault_campaign.py, run by hand, has hundreds of faults."""

import subprocess
import sys
from pathlib import Path

CAMPAIGN = Path(__file__).parents[2] / "manual" / "fault_campaign.py"


def test_faults_in_the_middle_of_sums() -> None:
    counts = ["--kills", "2", "--stops", "2", "--switch-faults", "2", "--seed", "1"]
    done = subprocess.run([sys.executable, str(CAMPAIGN), *counts], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 faults" in done.stdout, done.stdout

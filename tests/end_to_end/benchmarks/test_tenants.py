"""benchmarks/tenants/tenants.py: a neighbour's sums go on, and the switch stays small, whoever takes all it can get.

Its own page has the figures of a quiet machine. Here others may run at the same time, so only a lock-out shows.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.net.namespaces import missing

TENANTS = Path(__file__).parents[3] / "benchmarks" / "tenants" / "tenants.py"
# Its modules stand beside it, where a safe path doesn't look.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}


@pytest.mark.skipif(missing("tc", "unshare") is not None, reason=f"no star: {missing('tc', 'unshare')}")
def test_neighbours_sum_beside_those_who_take_all_they_can_get(tmp_path: Path) -> None:
    report = tmp_path / "tenants.json"
    kinds = "waiting-8-addresses,slots,job-packets"
    settings = ["--kinds", kinds, "--seconds", "0.8", "--rounds", "1", "--gbit", "0.3", "--mebibytes", "2"]
    command = [sys.executable, str(TENANTS), *settings, "--json", str(report)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    for kind in kinds.split(","):
        assert found[kind]["share"] > 0.6, found
        assert found[kind]["memory_mib"] < found["idle_mib"] + 250, found  # 1,000 half lines of 64 KB are 60
    assert found["counters"]["joins_refused"] > 0
    assert found["counters"]["epochs_failed"] <= 9 + 1  # those of the offender's jobs, of which eight are "slots"

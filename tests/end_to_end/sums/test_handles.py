"""Sums that are started in one place and finished in another, on real hosts through a real switch."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import COMPILED_FAST, finish

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster


@pytest.mark.parametrize("hosts", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_sums_in_two_parts_are_those_of_psum(cluster: "Cluster", tmp_path: Path, hosts: int) -> None:
    for process in cluster.run("sums/handles.py", "sums", str(hosts), str(tmp_path), hosts=hosts, env=COMPILED_FAST):
        assert "all sums are those of psum" in process.text


def test_errors_are_named_on_all_hosts(cluster: "Cluster") -> None:
    started = cluster.start("sums/handles.py", "errors", hosts=2, env=COMPILED_FAST)
    finish(started)
    for process in started:
        process.wait_for(r"^one host is late: DeadlineExceededError: handles\.py:\d+.* psum_start of float32\[1,5\]", 1)
        process.wait_for(r"^too many: HandleError: .*handles\.py:\d+.*: 64 handles of this call aren't finished", 1)
        process.wait_for(r"^former: HandleError: handles\.py:\d+.* was started in a former session", 1)
        process.wait_for(r"^went on with 4\.0", 1)

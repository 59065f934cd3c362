"""Hosts whose sums are calls of Python, as on TPUs, with other such hosts and with CPU hosts: real processes."""

import re
import signal
from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import COMPILED_FAST, SOME_DTYPES, digest

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster, Process

PROGRAM = "by_host_calls.py"
ALL = "0,1,2"


def test_bits_are_those_of_cpu_hosts(cluster: "Cluster") -> None:
    """Where all hosts sum so, and where one does among CPU hosts: what they tell of is the same in each job, too."""
    program = ("sums/sums.py", *SOME_DTYPES)
    bits = {digest(cluster.run(PROGRAM, ranks, *program, hosts=3, env=COMPILED_FAST)) for ranks in (ALL, "1")}
    assert len(bits) == 1


def test_independent_sums_match(cluster: "Cluster") -> None:
    for process in cluster.run(PROGRAM, "0", "order/matching.py", "2"):
        assert "rounds 2" in process.text


def test_sums_that_only_some_executions_come_to(cluster: "Cluster") -> None:
    for process in cluster.run(PROGRAM, "0", "order/conditional.py", "branch", "agree"):
        assert "all steps are right" in process.text


def test_residuals(cluster: "Cluster") -> None:
    env = {"JAX_PASSING_CHECK_EQUAL": "false", **COMPILED_FAST}  # as only CPU hosts compare
    for process in cluster.run(PROGRAM, "0", "sums/residuals.py", "int8", env=env):
        assert "residuals right" in process.text


def test_sums_of_different_executions_never_meet(cluster: "Cluster") -> None:
    for process in cluster.run(PROGRAM, "0", "order/conditional.py", "loop", "disagree"):
        assert "raised DeadlineExceededError" in process.text, process.text
        assert "in a loop or branch that all hosts must go through alike (execution " in process.text


def test_different_programs_raise_on_every_host(cluster: "Cluster") -> None:
    for process in cluster.run(PROGRAM, "1", "order/mismatch.py", "order", devices=1):
        raised = re.search(r"^raised (\w+) after ([\d.]+) s: (.*)", process.text, re.M)
        assert raised, process.text
        assert raised[1] == "ProgramMismatchError"
        assert "Hosts run different programs. In jit_body on 1 device" in process.text
        assert "mismatch.py:" in process.text


def test_many_executions_in_flight(cluster: "Cluster") -> None:
    """More of them than XLA takes at once; the host dispatches ahead for as long as it can."""
    for process in cluster.run(PROGRAM, ALL, "order/ahead.py", "400", "wait"):
        assert "all sums are right" in process.text


@pytest.mark.parametrize(("end", "code"), [pytest.param("leave", 0, marks=pytest.mark.smoke), ("raise", 1)])
def test_a_program_ends_while_executions_are_in_flight(cluster: "Cluster", end: str, code: int) -> None:
    """They call Python, which would abort the process if it ended meanwhile."""
    for process in cluster.start(PROGRAM, ALL, "order/ahead.py", "25", end):
        assert process.wait() == code, process.text


def raised(process: "Process") -> str:
    """The exception that the host got; afterwards it must have gone on."""
    match = process.wait_for(r"^raised (\w+) after ([\d.]+) s: (.*)")
    process.wait_for("went on with")
    assert process.wait() == 0, process.text
    return match[1]


def test_killed_host(cluster: "Cluster") -> None:
    processes = cluster.start(PROGRAM, ALL, "faults/endless.py", "8", hosts=3, devices=2)
    for process in processes:
        process.wait_for("running as process")
    processes[1].signal(signal.SIGKILL)
    for rank in (0, 2):
        assert raised(processes[rank]) == "HostLostError", processes[rank].text
        assert "ranks (1,)\n" in processes[rank].text

"""Training that loses a host, gains one, and loses the switch, for real."""

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import LIMIT_S, Process, host_settings

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_elastic.py"
HOSTS = int(os.environ.get("ELASTIC_HOSTS", "3"))  # by hand with four: docs/train/elastic.md has the figures
RECOVERY_S = float(os.environ.get("ELASTIC_RECOVERY_S", "20"))  # of a machine that may be busy


def went_on(processes: "list[Process]", nth: int) -> float:
    """All of them have taken a step after they met for the nth time: the seconds that they needed."""
    pattern = r"hosts go on from step \w+, the next one done after ([\d.]+) s"
    deadline = time.monotonic() + LIMIT_S
    while True:
        found = [re.findall(pattern, process.text) for process in processes]
        if all(len(times) >= nth for times in found):
            return max(float(times[nth - 1]) for times in found)
        assert time.monotonic() < deadline, [process.text for process in processes]
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("wire", "confidential"),
    [
        pytest.param("full", False, marks=pytest.mark.smoke),
        ("full", True),
        pytest.param("int8", False, marks=pytest.mark.slow),
    ],
)
def test_a_run_with_faults_has_the_bits_of_one_without(
    cluster: "Cluster", hosts_key: Path, wire: str, confidential: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One host is killed, another one comes, the switch is killed and its standby takes over.

    On a narrow wire rounding goes on at random from meeting to meeting: there all hosts have the same bits, no more."""
    standby = cluster.start_switch()

    args = ["--steps", "100", *(["--check"] if wire == "full" else [])]
    settings = {"world_size_min": "2", "standby": standby.address, "wire_dtype": wire}
    settings["lease_s"] = "30"  # one is stopped while another starts
    if confidential:
        settings["hosts_key_file"] = str(hosts_key)
    monkeypatch.setenv("JAX_LOG_COMPILES", "1")
    running = [start(cluster, rank, *args, **settings) for rank in range(HOSTS)]
    went_on(running, 1)
    compiled = compilations(running[0])
    assert compiled > 0
    killed_at = time.monotonic()
    running.pop(1).signal(signal.SIGKILL)
    took = went_on(running, 2)
    print(f"a host of {HOSTS} is killed: {took:.2f} s, seen from here {time.monotonic() - killed_at:.2f} s")
    assert took < RECOVERY_S
    running[0].signal(signal.SIGSTOP)  # a straggler, for less than its lease: nobody takes it for lost
    newcomer = start(cluster, 1, *args, **settings)
    running[1].wait_for("HostJoinedError")
    running[0].signal(signal.SIGCONT)
    print(f"another one comes: {went_on(running, 3):.2f} s")
    newcomer.wait_for(f"compiles for now as rank {HOSTS - 1} of {HOSTS}")
    cluster.switch.signal(signal.SIGKILL)
    took = went_on(running, 4)
    print(f"the switch is killed: {took:.2f} s")
    assert took < RECOVERY_S
    # No world size and no switch made the programs anew.
    assert compilations(running[0]) == compiled, running[0].text
    for process in (*running, newcomer):
        assert process.wait() == 0, process.text
        if wire == "full":
            process.wait_for("same bits without faults", 1)
    (_,) = {process.wait_for(r"accuracy (.*), schedule .*, digest (\w+)", 1)[2] for process in (*running, newcomer)}
    assert float(running[0].wait_for(r"accuracy ([\d.]+)%", 1)[1]) > 80  # a wrong sum would spoil it
    print(running[0].wait_for("schedule .*", 1)[0])


def compilations(process: Process) -> int:
    """Counts compilations of its programs; session.rejoin has its own, which waits for what was dispatched."""
    return sum("Finished XLA compilation" in line and "jit(_work)" not in line for line in list(process.lines))


def start(cluster: "Cluster", rank: int, *args: str, script: Path = EXAMPLE, **settings: str) -> Process:
    more = {f"JAX_PASSING_{name.upper()}": text for name, text in settings.items()}
    command = [sys.executable, "-P", str(script), "--step-s", "0.03", *args]
    environment = host_settings(cluster.switch.address, "elastic", rank, HOSTS, 1) | more
    cluster.processes.append(process := Process(command, environment))
    return process


def test_a_host_that_leaves_early_is_left_behind_at_once(cluster: "Cluster", tmp_path: Path) -> None:
    """It ends in good order, so the switch doesn't lose it: the others may not wait until a sum stalls (warn_s)."""
    leaves = tmp_path / EXAMPLE.name  # with all of its lines where they are
    text, last = EXAMPLE.read_text(), "        time.sleep(max(0.0, self.step_s"
    assert text.count(last) == 1
    leaves.write_text(text.replace(last, last.replace("time.sleep", "number == 19 and exit(0); time.sleep")))
    scripts = [leaves if rank == 1 else EXAMPLE for rank in range(HOSTS)]
    processes = [
        start(cluster, rank, "--steps", "60", script=script, warn_s="60") for rank, script in enumerate(scripts)
    ]
    one = processes.pop(1)
    took = went_on(processes, 2)
    print(f"a host of {HOSTS} leaves: {took:.2f} s")
    assert took < RECOVERY_S
    assert one.wait() == 0, one.text
    for process in processes:
        assert process.wait() == 0, process.text
        who = r"rank 1 \(127\.0\.0\.1\) left the job after \d+ of them. Call session.rejoin on every other host"
        process.wait_for(f"after step 20: HostLostError: .*, but {who}", 1)


def test_only_the_newcomer_that_is_wrong_is_refused(cluster: "Cluster", tmp_path: Path) -> None:
    """By its settings before anybody stops for it; by its program when that runs beside the others'."""
    commented = tmp_path / EXAMPLE.name
    commented.write_text(EXAMPLE.read_text().replace("class Training:", "# one comment line more\nclass Training:"))
    endless = ("--steps", "4000", "--step-s", "0.1")
    running = [start(cluster, rank, *endless, world_size_min="2", join_deadline_s="20") for rank in range(HOSTS - 1)]
    went_on(running, 1)
    other_wire = start(cluster, HOSTS - 1, *endless, world_size_min="2", wire_dtype="int8")
    assert other_wire.wait() != 0
    other_wire.wait_for("ConfigError: This host has wire_dtype int8, the hosts that run job 'elastic' have full", 1)
    assert all("after step" not in process.text for process in running), "nobody notices"
    other_program = start(cluster, HOSTS - 1, *endless, script=commented, world_size_min="2")
    assert other_program.wait() != 0
    other_program.wait_for("ProgramMismatchError: Hosts run different programs", 1)
    went_on(running, 2)
    for process in running:
        process.wait_for(rf"HostLostError: Rank {HOSTS - 1} can't go on in this job. ProgramMismatchError", 1)
    start(cluster, HOSTS - 1, *endless, world_size_min="2").wait_for(f"{HOSTS} hosts go on from step")
    assert all(process.popen.poll() is None for process in running)

"""Trees of switches and in-rack mode, with real processes: the same sums as ever, the same errors by name."""

import re
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import digest, finish, free_address

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster, Process, Switch

DEADLINE_S = 8


def racks(cluster: "Cluster", count: int = 2, *, parent: "Switch | None" = None) -> "list[Switch]":
    return [cluster.start_switch("127.0.0.1:0", "--parent", (parent or cluster.switch).address) for _ in range(count)]


def listed(*switches: "Switch") -> str:
    return ",".join(switch.address for switch in switches)


def start(
    cluster: "Cluster",
    program: str,
    *args: str,
    places: Sequence[str],
    devices: int = 1,
    env: dict[str, str] | None = None,
) -> "list[Process]":
    """`places`: of each rank, the switches that it lists."""
    started = []
    for rank, place in enumerate(places):
        own = {
            "JAX_PASSING_SWITCH": place,
            "JAX_PASSING_RANK": str(rank),
            "JAX_PASSING_WORLD_SIZE": str(len(places)),
            "HOST_RANK": str(rank),
            "HOST_COUNT": str(len(places)),
        }
        started += cluster.start(program, *args, hosts=1, devices=devices, env=own | (env or {}))
    return started


def run(cluster: "Cluster", *arguments: str, **options: object) -> "list[Process]":
    processes = start(cluster, *arguments, **options)
    finish(processes)
    return processes


# Sums.


@pytest.mark.smoke
def test_two_racks_equal_lax_psum(cluster: "Cluster") -> None:
    coordinator = free_address()
    left, right = racks(cluster)
    places = [left.address, left.address, right.address, right.address]
    env = {"COORDINATOR": coordinator, "JAX_PASSING_RANK": "", "JAX_PASSING_WORLD_SIZE": ""}
    for process in run(cluster, "transforms/global_mesh.py", places=places, env=env):
        assert "global mesh done" in process.text


def test_bits_are_the_same_in_a_tree_in_rack_mode_and_at_one_switch(cluster: "Cluster") -> None:
    left, right = racks(cluster)
    tree = run(cluster, "sums/once.py", places=[left.address, right.address, left.address])
    one, other = racks(cluster), racks(cluster)
    in_rack = run(cluster, "sums/once.py", places=[listed(*one), listed(*one), listed(*other)])
    flat = cluster.run("sums/once.py", hosts=3, devices=1)
    assert digest(tree) == digest(in_rack) == digest(flat)


def test_independent_sums_match_over_three_levels(cluster: "Cluster") -> None:
    (spine,) = racks(cluster, 1)
    left, right = racks(cluster, parent=spine)
    # A host of the root beside them.
    places = [left.address, right.address, cluster.switch.address]
    for process in run(cluster, "order/matching.py", "1", places=places):
        assert "rounds 1" in process.text


def test_more_ranks_than_a_switch_has_workers(cluster: "Cluster") -> None:
    """Every device a rank: 72 of them."""
    left, right = racks(cluster)
    env = {"JAX_PASSING_STRATEGY": "flat"}
    for process in run(
        cluster, "sums/once.py", places=[left.address, left.address, right.address], devices=24, env=env
    ):
        assert "summed 72.0 over 3" in process.text
    env["JAX_PASSING_JOIN_DEADLINE_S"] = "15"
    (refused,) = start(cluster, "sums/once.py", places=[left.address], devices=72, env=env)
    refused.wait_for("This switch adds up what 64 hosts send")


# Faults.


def running(cluster: "Cluster", places: Sequence[str]) -> "list[Process]":
    processes = start(cluster, "faults/endless.py", str(DEADLINE_S), places=places)
    for process in processes:
        process.wait_for("running as process")
    return processes


def raised(process: "Process", kind: str, within_s: float = DEADLINE_S) -> str:
    """Returns what the host got; afterwards it must have gone on."""
    match = process.wait_for(r"^raised (\w+) after ([\d.]+) s: (.*)")
    assert match[1] == kind, process.text
    assert float(match[2]) <= within_s, process.text
    process.wait_for("went on with 1.0")
    assert process.wait() == 0, process.text
    return process.text


def test_killed_rack(cluster: "Cluster") -> None:
    left, right = racks(cluster)
    places = [left.address, right.address, right.address]
    processes = running(cluster, places)
    right.signal(signal.SIGKILL)
    text = raised(processes[0], "HostLostError")
    assert re.search(r"^ranks \(1, 2\)", text, re.M)
    assert f"The switch at {right.address} (ranks 1, 2)" in text
    for process in processes[1:]:
        assert right.address in raised(process, "SwitchLostError")
    cluster.start_switch(right.address, "--parent", cluster.switch.address)
    run(cluster, "sums/once.py", places=places, env={"JAX_PASSING_JOB": "endless.py"})  # all join again


def test_killed_root(cluster: "Cluster") -> None:
    left, right = racks(cluster)
    places = [left.address, right.address]
    processes = running(cluster, places)
    cluster.switch.signal(signal.SIGKILL)
    for process, rack in zip(processes, (left, right), strict=True):
        text = raised(process, "SwitchLostError")
        assert f"The switch at {rack.address} lost its parent, the switch at {cluster.switch.address}" in text
    cluster.start_switch(cluster.switch.address)
    run(cluster, "sums/once.py", places=places, env={"JAX_PASSING_JOB": "endless.py"})


@pytest.mark.parametrize("stopped", ["host", "rack"])
def test_stopped_ones_are_named_at_the_deadline(cluster: "Cluster", stopped: str) -> None:
    left, right = racks(cluster)
    processes = running(cluster, [left.address, right.address, right.address])
    (processes[2] if stopped == "host" else right).signal(signal.SIGSTOP)
    missing = "rank 2" if stopped == "host" else "ranks 1, 2"
    text = raised(processes[0], "DeadlineExceededError", DEADLINE_S + 12)
    assert f"Missing: {missing}." in text
    assert stopped == "host" or f"The switch at {right.address} doesn't answer." in text


def test_the_root_may_start_last(cluster: "Cluster") -> None:
    left, right = racks(cluster)
    cluster.switch.signal(signal.SIGKILL)
    processes = start(cluster, "sums/once.py", places=[left.address, right.address])
    time.sleep(5.0)  # they connect, and wait
    cluster.start_switch(cluster.switch.address)
    finish(processes, 100)

"""Each strategy on two real hosts with two devices each, in both deployments."""

import re
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import COMPILED_FAST, PASSING, PROGRAMS, SOME_DTYPES, digest, free_address

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster, Process


DTYPES = (*SOME_DTYPES, "float16", "complex64")


def run(cluster: "Cluster", strategy: str, deployment: str, **env: str) -> "list[Process]":
    coordinator = free_address()
    started = []
    for rank in range(2):
        settings = {"JAX_PASSING_RANK": str(rank), "JAX_PASSING_WORLD_SIZE": "2", "COORDINATOR": coordinator}
        settings |= {**COMPILED_FAST, **env}
        started += cluster.start("sums/sums.py", deployment, strategy, *DTYPES, hosts=1, env=settings)
    return started


def results(started: "list[Process]") -> tuple[str, list[int]]:
    """(digest, the same of all; packets that each host sent, without those sent again)"""
    bits = digest(started)
    return bits, [int(re.search(r"^packets (\d+)$", process.text, re.M)[1]) for process in started]


def test_native_on_one_mesh_sends_nothing_to_the_switch(cluster: "Cluster") -> None:
    _, packets = results(run(cluster, "native", "global"))
    assert packets == [0, 0]


def test_auto_takes_the_ring_if_the_switch_stands_behind_a_slow_link(cluster: "Cluster") -> None:
    slow = cluster.start_switch("127.0.0.1:0", "--link-gbit", "0.001")
    _, packets = results(run(cluster, "auto", "global", JAX_PASSING_SWITCH=slow.address))
    assert 0 < max(packets) < 500  # the smallest sums alone: a ring takes more round trips


def test_auto_takes_the_switch_if_it_has_a_port_for_each_host(cluster: "Cluster") -> None:
    _, packets = results(run(cluster, "auto", "global", JAX_PASSING_LINK_GBIT="0.1"))
    assert min(packets) > 1000


def test_native_on_a_mesh_of_one_host_raises(cluster: "Cluster") -> None:
    for process in run(cluster, "native", "local"):
        assert process.wait() != 0
        assert "ConfigError: strategy='native' is jax.lax.psum" in process.text


def test_flat(cluster: "Cluster") -> None:
    bits, packets = results(run(cluster, "flat", "local", JAX_PASSING_STRATEGY="flat"))
    _, passing = results(run(cluster, "passing", "local", JAX_PASSING_STRATEGY="flat"))
    assert min(packets) > 1.5 * max(passing)  # each of two devices sends
    other, _ = results(run(cluster, "flat", "global", JAX_PASSING_STRATEGY="flat"))
    assert other == bits


def test_flat_needs_a_session_of_that_strategy(cluster: "Cluster") -> None:
    for process in run(cluster, "flat", "local"):
        assert process.wait() != 0
        assert "ConfigError: strategy='flat' gives each device a rank" in process.text


def test_flat_over_a_part_of_the_devices_raises(cluster: "Cluster") -> None:
    for process in cluster.run("sums/flat_parts.py", hosts=2, devices=4, env={"JAX_PASSING_STRATEGY": "flat"}):
        assert process.text.count("raised ConfigError") == 2


def test_the_launcher_needs_no_more_than_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PASSING_STRATEGY", "flat")
    launcher = [*PASSING, "run", "--hosts", "2", "--devices-per-host", "2"]
    ended = subprocess.run(
        [*launcher, str(PROGRAMS / "sums/sums.py"), *DTYPES], capture_output=True, text=True, timeout=200
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(set(re.findall(r"digest (\w+)", ended.stdout))) == 1


@pytest.mark.parametrize("victim", ["host", "switch"])
def test_a_loss_ends_both_jobs_of_flat(cluster: "Cluster", victim: str) -> None:
    started = cluster.start("faults/endless.py", "8", env={"JAX_PASSING_STRATEGY": "flat"})
    for process in started:
        process.wait_for("running as process")
    (started[1] if victim == "host" else cluster.switch).signal(signal.SIGKILL)
    for process in started[:1] if victim == "host" else started:
        process.wait_for("HostLostError" if victim == "host" else "SwitchLostError")
        process.wait_for(r"ranks \(1,\)" if victim == "host" else "ranks None", 5)  # a host's rank, no device's
        process.wait_for("went on with 2.0")
        assert process.wait() == 0, process.text

"""Real hosts behind a bridge, summed by the program in the switch's kernel: the bits of the C++ switch."""

import re
import signal
import sys
from collections.abc import Iterator, Sequence

import pytest
from bridge_network import BridgeNetwork
from ebpf_here import missing

from .conftest import PROGRAMS, Process

HOSTS = 3

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no eBPF here: {missing()}")


class Cluster:
    def __init__(self, network: BridgeNetwork) -> None:
        self.network = network
        self.processes: list[Process] = []

    def start_switch(self, *flags: str) -> Process:
        listen = f"{self.network.switch_address}:7171"
        command = [sys.executable, "-P", "-m", "jax_passing.cli", "switch", "--listen", listen, "--verbose", *flags]
        switch = Process(self.network.command(None, command), {})
        self.processes.append(switch)
        switch.wait_for("listening on", 30)
        return switch

    def start_ebpf(self, *flags: str) -> Process:
        return self.start_switch("--data-plane", "ebpf", "--device", "bridge", *flags)

    def start_hosts(
        self, program: str, *arguments: str, job: str = "job", devices: int = 2, places: Sequence[str] = ()
    ) -> list[Process]:
        """`places`: of each rank its switch, if it isn't the one."""
        started = [
            Process(
                self.network.command(rank, [sys.executable, str(PROGRAMS / program), *arguments]),
                {
                    "JAX_PASSING_SWITCH": f"{(places or [self.network.switch_address] * HOSTS)[rank]}:7171",
                    "JAX_PASSING_JOB": job,
                    "JAX_PASSING_RANK": str(rank),
                    "JAX_PASSING_WORLD_SIZE": str(HOSTS),
                    "JAX_NUM_CPU_DEVICES": str(devices),
                    "JAX_PLATFORMS": "cpu",
                    "PYTHONUNBUFFERED": "1",
                },
            )
            for rank in self.network.hosts
        ]
        self.processes += started
        return started

    def digest(self, hosts: list[Process]) -> str:
        for host in hosts:
            assert host.wait(200) == 0, host.text
        (digest,) = {host.wait_for(r"^digest (\w+)", 1)[1] for host in hosts}
        return digest

    def stop(self) -> None:
        for process in self.processes:
            process.stop()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with BridgeNetwork("ebpfe2e", HOSTS) as network:
        cluster = Cluster(network)
        try:
            yield cluster
        finally:
            cluster.stop()


def counters(switch: Process) -> dict[str, int]:
    """Ends the switch, which then tells what it counted."""
    switch.signal(signal.SIGTERM)
    assert switch.wait(20) == 0, switch.text
    last = switch.wait_for("^shut down: (.*)", 1)[1]
    return {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", last)}


@pytest.mark.slow
def test_every_sum_has_the_bits_of_the_software_switch(cluster: Cluster) -> None:
    switch = cluster.start_switch()
    expected = cluster.digest(cluster.start_hosts("sums.py"))
    counters(switch)

    switch = cluster.start_ebpf()
    assert cluster.digest(cluster.start_hosts("sums.py")) == expected
    assert "results by multicast to 239." in switch.text
    counted = counters(switch)
    assert counted["results_multicast"] == counted["complete"] > 0
    verdicts = ("added", "complete", "resend", "duplicate")
    assert counted["packets_received"] == sum(counted.get(name, 0) for name in verdicts)


@pytest.mark.slow
def test_two_jobs_at_once_and_a_switch_that_was_killed(cluster: Cluster) -> None:
    killed = cluster.start_ebpf()
    for host in cluster.start_hosts("steps.py", devices=1):
        host.wait_for("^step 100$", 60)
    killed.signal(signal.SIGKILL)
    killed.wait(10)
    for host in cluster.processes[1:]:
        host.stop()

    switch = cluster.start_ebpf("--no-multicast")
    first, second = cluster.start_hosts("sums.py"), cluster.start_hosts("sums.py", job="other")
    assert cluster.digest(first) == cluster.digest(second)
    counted = counters(switch)
    assert counted["epochs_started"] == 2
    assert "results_multicast" not in counted
    assert counted["packets_sent"] == HOSTS * counted["complete"] + counted.get("resend", 0)


@pytest.mark.slow
def test_a_bridge_that_is_made_again(cluster: Cluster) -> None:
    cluster.start_ebpf()
    running = cluster.start_hosts("endless.py", "20", devices=1)
    for host in running:
        host.wait_for("running as process", 100)
    cluster.network.delete_bridge()
    cluster.network.add_bridge()
    for host in running:
        host.wait_for(r"^raised SwitchLostError after .* the network device bridge (was replaced|is gone)", 30)
        host.wait_for("went on with 1.0", 60)
    cluster.digest(cluster.start_hosts("once.py", job="another", devices=1))


@pytest.mark.slow
def test_racks_below_it_and_a_host_beside_them(cluster: Cluster) -> None:
    switch = cluster.start_ebpf()
    network = cluster.network
    for rack in range(HOSTS - 1):
        listen = f"{network.address(rack)}:7171"
        parent = ["--parent", f"{network.switch_address}:7171"]
        command = [sys.executable, "-P", "-m", "jax_passing.cli", "switch", "--listen", listen, *parent]
        started = Process(network.command(rack, command), {})
        cluster.processes.append(started)
        started.wait_for("listening on", 30)
    places = [network.address(0), network.address(1), network.switch_address]
    tree = cluster.digest(cluster.start_hosts("once.py", devices=1, places=places))
    flat = cluster.digest(cluster.start_hosts("once.py", devices=1))
    assert tree == flat
    assert counters(switch)["epochs_started"] == 2

"""Real hosts behind a bridge, summed by the program in the switch's kernel: the bits of the C++ switch."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.jobs.bridge_cluster import BridgeCluster
from support.jobs.cluster import SOME_DTYPES, Process, counters, digest
from support.net.ebpf_here import missing

HOSTS = 3

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no eBPF here: {missing()}")


class Cluster(BridgeCluster):
    def start_ebpf(self, *flags: str) -> Process:
        return self.start_switch("--data-plane", "ebpf", "--device", "bridge", *flags)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster("ebpfe2e", HOSTS) as cluster:
        yield cluster


def test_every_sum_has_the_bits_of_the_software_switch(
    cluster: Cluster, hosts_key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = cluster.start_switch()
    expected = digest(cluster.start_hosts("sums/sums.py", *SOME_DTYPES, devices=2))
    counters(switch)

    switch = cluster.start_ebpf()
    assert digest(cluster.start_hosts("sums/sums.py", *SOME_DTYPES, devices=2)) == expected
    assert "results by multicast to 239." in switch.text
    counted = counters(switch)
    assert counted["results_multicast"] == counted["complete"] > 0
    verdicts = ("added", "complete", "resend", "duplicate", "stale")
    assert counted["packets_received"] == sum(counted.get(name, 0) for name in verdicts)

    monkeypatch.setenv("JAX_PASSING_HOSTS_KEY_FILE", str(hosts_key))
    cluster.start_ebpf()
    confidential = cluster.start_hosts("sums/sums.py", *SOME_DTYPES, devices=2)
    assert digest(confidential) == expected


def test_two_jobs_at_once_and_a_switch_that_was_killed(cluster: Cluster) -> None:
    killed = cluster.start_ebpf()
    for host in cluster.start_hosts("sums/steps.py"):
        host.wait_for("^step 100$")
    killed.signal(signal.SIGKILL)
    killed.wait(10)
    for host in cluster.processes[1:]:
        host.stop()

    switch = cluster.start_ebpf("--no-multicast")
    first, second = (cluster.start_hosts("sums/sums.py", *SOME_DTYPES, job=job, devices=2) for job in ("job", "other"))
    assert digest(first) == digest(second)
    counted = counters(switch)
    assert counted["epochs_started"] == 2
    assert "results_multicast" not in counted
    assert counted["packets_sent"] == HOSTS * counted["complete"] + counted.get("resend", 0)
    assert "too_far" not in counted


def test_a_bridge_that_is_made_again(cluster: Cluster) -> None:
    cluster.start_ebpf()
    running = cluster.start_hosts("faults/endless.py", "20")
    for host in running:
        host.wait_for("running as process")
    cluster.delete_bridge()
    cluster.add_bridge()
    for host in running:
        host.wait_for(r"^raised SwitchLostError after .* the network device bridge (was replaced|is gone)")
        host.wait_for("went on with 1.0")
    digest(cluster.start_hosts("sums/once.py", job="another"))


def test_racks_below_it_and_a_host_beside_them(cluster: Cluster) -> None:
    switch = cluster.start_ebpf()
    for rack in range(HOSTS - 1):
        cluster.start_switch("--parent", cluster.place(), machine=rack)
    places = [cluster.place(0), cluster.place(1), cluster.place()]
    tree = digest(cluster.start_hosts("sums/once.py", places=places))
    flat = digest(cluster.start_hosts("sums/once.py"))
    assert tree == flat
    assert counters(switch)["epochs_started"] == 2

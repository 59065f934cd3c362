"""Results by multicast where the network carries it, by unicast where it does not: found out, on namespaces.

Three hosts and the switch on the ports of a bridge, so that the bridge can be told to carry no multicast to a port.
"""

import re
from collections.abc import Iterator

import pytest

from support.jobs.bridge_cluster import PORT, BridgeCluster
from support.jobs.cluster import SOME_DTYPES, Process, counters, digest
from support.net.namespaces import ip, missing

HOSTS = 3


pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no network of our own: {missing()}")


class Cluster(BridgeCluster):
    """The switch is on one more machine, behind the bridge as the hosts are."""

    def start_multicast(self) -> Process:
        return self.start_switch("--listen", f"0.0.0.0:{PORT}", machine=HOSTS)

    def start_at_switch(self, program: str, *arguments: str) -> list[Process]:
        return self.start_hosts(program, *arguments, places=[self.place(HOSTS)] * HOSTS)

    def carry_multicast(self, host: int, carries: bool) -> None:
        flag = "on" if carries else "off"
        ip(self.switch, "link", "set", f"port{host}", "type", "bridge_slave", "mcast_flood", flag)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster("mc", HOSTS + 1) as cluster:
        yield cluster


def _sum(cluster: Cluster) -> tuple[str, str, dict[str, int]]:
    """Sums of every kind, checked by the hosts: the digest of their bits, the switch's log, its counters."""
    switch = cluster.start_multicast()
    bits = digest(cluster.start_at_switch("sums/sums.py", *SOME_DTYPES))
    return bits, switch.text, counters(switch)


def test_by_multicast_where_all_hear_it_else_by_unicast_and_the_same_bits(cluster: Cluster) -> None:
    bits, log, counted = _sum(cluster)
    assert "results by multicast to 239." in log
    assert counted["results_multicast"] == counted["complete"]
    assert counted["packets_sent"] == counted["complete"] + counted.get("resend", 0)

    cluster.carry_multicast(1, False)
    other_bits, log, counted = _sum(cluster)
    assert re.search(r"each member is sent its own results: the group 239\.\S+ doesn't reach rank 1\n", log)
    assert "results by unicast" in log
    assert "results_multicast" not in counted
    assert counted["packets_sent"] == HOSTS * counted["complete"] + counted.get("resend", 0)
    assert bits == other_bits


def test_a_network_that_stops_carrying_multicast(cluster: Cluster) -> None:
    switch = cluster.start_multicast()
    hosts = cluster.start_at_switch("sums/steps.py")
    hosts[2].wait_for("^step 100$")
    cluster.carry_multicast(2, False)
    switch.wait_for("rank [0-2] no longer hears the multicast group")
    later = 100 * (len(hosts[2].lines) + 5)
    hosts[2].wait_for(f"^step {later}$")  # wrong sums end it
    for host in hosts:
        assert host.popen.poll() is None, host.text
        host.stop()
    counted = counters(switch)
    assert counted["groups_lost"] == 1
    assert counted["packets_sent"] > counted["complete"] + HOSTS * 100

"""Packets as long as the path of each host carries them, on namespaces whose links have MTUs of 9000 and 1500.

Hosts and the switch stand at the ports of a bridge; the switch's own port is the bridge.
"""

from collections.abc import Iterator

import pytest

from support.jobs.bridge_cluster import BridgeCluster
from support.jobs.cluster import counters, digest
from support.net.bridge_network import PREFIX
from support.net.namespaces import ip, missing

HOSTS = 2
LONG, SHORT = 2232, 360  # lanes

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=f"no network of our own: {missing()}"),
    pytest.mark.slow,  # eight processes compile, four times two
]


class Cluster(BridgeCluster):
    def set_mtu(self, host: int, of_host: int, of_port: int) -> None:
        """Frames longer than a port's MTU are lost there."""
        ip(self.namespace(host), "link", "set", "eth0", "mtu", str(of_host))
        ip(self.switch, "link", "set", f"port{host}", "mtu", str(of_port))
        ip(self.switch, "link", "set", "bridge", "mtu", "9000")

    def keep_tcp_short(self) -> None:
        """Else the control connection would send segments that get lost, as any program's would."""
        for machine, device in ((self.switch, "bridge"), *((self.namespace(host), "eth0") for host in self.hosts)):
            ip(machine, "route", "change", f"{PREFIX}.0/24", "dev", device, "advmss", "1400")

    def sum(self) -> tuple[str, int, str, str]:
        """Sums of some kinds: the digest of their bits, the lanes of a packet, and the logs."""
        switch = self.start_switch("--lanes-per-chunk", str(LONG))
        hosts = self.start_hosts("sums/few.py")
        bits = digest(hosts)
        lanes = int(switch.wait_for(r"packets of up to (\d+) lanes")[1])
        counted = counters(switch)
        assert not {name for name in counted if name.startswith("foreign") or name in ("malformed", "datagrams_unsent")}
        return bits, lanes, switch.text, "\n".join(host.text for host in hosts)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster("long", HOSTS) as cluster:
        for host in range(HOSTS):
            cluster.set_mtu(host, 9000, 9000)
        cluster.keep_tcp_short()
        yield cluster


def test_the_shortest_path_of_a_job_decides_and_no_bit_changes(cluster: Cluster) -> None:
    bits, lanes, log, _ = cluster.sum()
    assert lanes == LONG
    assert "results by multicast to 239." in log

    cluster.set_mtu(1, 1500, 1500)
    short_bits, lanes, _, told = cluster.sum()
    assert (lanes, short_bits) == (SHORT, bits)
    assert "don't come back" not in told  # its kernel knows

    cluster.set_mtu(1, 9000, 1500)  # it sends what is lost on the way
    lossy_bits, lanes, _, told = cluster.sum()
    assert (lanes, lossy_bits) == (SHORT, bits)
    assert f"packets of {LONG} lanes don't come back from the switch" in told

    cluster.set_mtu(1, 4000, 4000)
    middle_bits, lanes, _, _ = cluster.sum()
    assert (lanes, middle_bits) == ((4000 - 56) // 4, bits)

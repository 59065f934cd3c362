"""Forged packets at the software switch. test_bmv2.py has those at a device."""

import pytest

from jax_passing.switch.server.settings import SwitchSettings
from support.jobs import forgeries
from support.jobs.bridge_cluster import BridgeCluster
from support.net.namespaces import missing


@pytest.mark.skipif(missing() is not None, reason=f"no network of our own: {missing()}")
def test_forged_packets_change_nothing() -> None:
    with BridgeCluster("forgeries", 3) as cluster:
        switch = cluster.start_switch("--no-multicast")
        hosts = cluster.start_hosts("sums/steps.py", places=[cluster.place()] * 2)
        slots = SwitchSettings().slots_per_job
        forgeries.check(switch, hosts, slots, cluster.namespace(1), cluster.namespace(2))

"""Forged packets at the software switch. test_bmv2.py has those at a device."""

import pytest
from support.net.namespaces import missing

from jax_passing.switch.server.settings import SwitchSettings

from . import forgeries
from .bridge_cluster import BridgeCluster


@pytest.mark.skipif(missing() is not None, reason=f"no network of our own: {missing()}")
def test_forged_packets_change_nothing() -> None:
    with BridgeCluster("forgeries", 3) as cluster:
        switch = cluster.start_switch("--no-multicast")
        hosts = cluster.start_hosts("steps.py", places=[cluster.place()] * 2)
        slots = SwitchSettings().slots_per_job
        forgeries.check(switch, hosts, slots, cluster.namespace(1), cluster.namespace(2))

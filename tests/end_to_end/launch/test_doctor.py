"""`jax-passing doctor` on a machine of its own, behind links of several MTUs."""

import json

import pytest

from support.jobs.bridge_cluster import BridgeCluster
from support.jobs.cluster import PASSING
from support.net.namespaces import ip, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no network of our own: {missing()}")


def findings(cluster: BridgeCluster) -> dict[str, dict[str, str]]:
    process = cluster.start(0, [*PASSING, "doctor", "--json", "--switch", cluster.place()])
    code = process.wait()
    found = json.loads(process.text)["findings"]
    assert code == int(any(finding["state"] == "bad" for finding in found)), process.text
    return {finding["check"]: finding for finding in found}


def test_an_mtu_below_what_packets_need() -> None:
    """Both ends cut them in two: sums work, and the doctor tells why they are slow, and which length helps."""
    with BridgeCluster("doctor", 1) as cluster:
        switch = cluster.start_switch()
        well = findings(cluster)
        for check in ("MTU", f"switch {cluster.place()}", "packets", "multicast"):
            assert well[check]["state"] == "good", well[check]
        assert well["MTU"]["reason"].startswith("1500 bytes")

        ip(cluster.namespace(0), "link", "set", "eth0", "mtu", "1400")
        ip(cluster.switch, "link", "set", "port0", "mtu", "1400")
        ip(cluster.switch, "link", "set", "bridge", "mtu", "1400")
        short = findings(cluster)
        assert short["MTU"]["state"] == "warning"
        assert "--lanes-per-chunk 336 " in short["MTU"]["remedy"]
        assert short["packets"]["state"] == "warning", short["packets"]
        assert "only in fragments" in short["packets"]["reason"]

        switch.stop()
        cluster.start_switch("--lanes-per-chunk", "336")
        helped = findings(cluster)
        assert (helped["MTU"]["state"], helped["packets"]["state"]) == ("good", "good"), helped
        assert "336 lanes (1364 bytes," in helped["packets"]["reason"]


def test_a_switch_to_which_no_way_leads() -> None:
    with BridgeCluster("doctor", 1) as cluster:
        ip(cluster.namespace(0), "link", "set", "eth0", "down")
        found = findings(cluster)
        assert found[f"switch {cluster.place()}"]["state"] == "bad"
        assert "no way leads there" in found[f"switch {cluster.place()}"]["reason"]

"""Simulated sums, against the planner, the floors of each scheme, and common sense."""

import itertools
from dataclasses import replace

import pytest

from jax_passing.errors import ConfigError
from jax_passing.predict import planner
from jax_passing.predict.cluster import GOODPUT_UNDER_LOSS, SimulatedCluster, goodput_under_loss
from jax_passing.predict.schemes import SCHEMES
from jax_passing.predict.sums import simulate_sums

S = 64 << 20
AGREE = 1e-10


def sums_of(*clusters, schemes=tuple(SCHEMES)):
    return [{one.scheme: one for one in own} for own in simulate_sums(clusters, schemes)]


@pytest.mark.parametrize("shared_cores", [0, 2])
def test_the_planner_agrees(shared_cores):
    """Its closed forms agree: for each way to sum that it knows, on links and on processors as the bound."""
    cases = list(itertools.product((1, 2, 3, 8, 64, 200), (1, 4), (0.1, 1.0, 10.0, 400.0)))
    clusters = [
        SimulatedCluster(hosts=hosts, devices_per_host=devices, link_gbit=gbit, shared_cores=shared_cores)
        for hosts, devices, gbit in cases
    ]
    schemes = ("passing", "flat", "ring", "server", "shards")
    for (hosts, devices, gbit), found in zip(cases, sums_of(*clusters, schemes=schemes), strict=True):
        cluster = planner.Cluster(hosts, devices, gbit, shared_cores=shared_cores)
        closed = {
            "passing": planner.predict(cluster, "passing", S // 4),
            "ring": planner.predict(cluster, "native", S // 4),
        }
        if hosts > 1:
            closed["flat"] = planner.predict(cluster, "flat", S // 4)
            closed["server"], closed["shards"] = planner.parameter_servers(cluster, S // 4)
        for scheme, prediction in closed.items():
            where = scheme, hosts, devices, gbit
            assert found[scheme].time_s(S) == pytest.approx(prediction.time_s, rel=AGREE), where
            assert found[scheme].link_bytes * S == pytest.approx(prediction.link_bytes, rel=1e-9), where


@pytest.mark.parametrize(("hosts", "devices"), [(2, 1), (4, 4), (64, 8), (512, 16)])
def test_floors_are_exact(hosts, devices):
    """The bytes that a host sends, and receives, in each scheme, as the known formulas have them."""
    H, G = hosts, devices
    (found,) = sums_of(SimulatedCluster(hosts=H, devices_per_host=G, rack_hosts=2))
    udp, tcp = planner.UDP_WIRE_BYTES_PER_BYTE, planner.TCP_WIRE_BYTES_PER_BYTE
    floors = {
        "passing": udp,
        "tree": udp,
        "in-rack": udp * 3 / 2,
        "flat": udp * G,
        "ring": tcp * 2 * (H * G - 1) / (H * G),
        "ring-of-hosts": tcp * 2 * (H - 1) / H,
        "halving-doubling": tcp * 2 * (H - 1) / H,
        "shards": udp * 2 * (H - 1) / H,
        "server": udp * H,
        "server-at-host": udp * (H - 1),
        "server-flat": udp * H * G,
    }
    assert floors.keys() == SCHEMES.keys()
    for scheme, floor in floors.items():
        assert found[scheme].link_bytes == pytest.approx(floor, rel=1e-12), scheme


def test_oversubscribed_racks():
    """Eight racks of 16 hosts; a rack's link has a quarter of its hosts' rate."""
    base = SimulatedCluster(hosts=128, link_gbit=1.0, rack_hosts=16, links_only=True)
    plain, crowded = sums_of(base, replace(base, oversubscription=4.0))
    wire_s = S * planner.UDP_WIRE_BYTES_PER_BYTE * 8 / 1e9
    tcp_s = S * planner.TCP_WIRE_BYTES_PER_BYTE * 8 / 1e9

    def net_s(one):
        return one.time_s(S) - one.waits_s

    assert net_s(plain["passing"]) == pytest.approx(wire_s, rel=AGREE)
    assert net_s(crowded["passing"]) == pytest.approx(4 * wire_s, rel=AGREE)  # 16 streams leave a rack
    assert net_s(crowded["tree"]) == pytest.approx(wire_s, rel=AGREE)  # one stream leaves it
    assert net_s(crowded["ring-of-hosts"]) == pytest.approx(net_s(plain["ring-of-hosts"]), rel=AGREE)  # one, too
    # Four steps in the rack, then three with 1/16 of the bytes through links that are four times as slow.
    steps_s = tcp_s * (2 * 15 / 16 + 4 * 2 * (1 / 32 + 1 / 64 + 1 / 128))
    assert net_s(crowded["halving-doubling"]) == pytest.approx(steps_s, rel=AGREE)
    # Of what a host sends to all others 112/128 leave the rack.
    assert net_s(crowded["shards"]) == pytest.approx(4 * wire_s * 2 * 112 / 128, rel=AGREE)


def test_racks_that_are_no_power_of_two_make_more_phases():
    """Six hosts a rack: only pairs at distance 1 are always in one rack. Each step waits for its slowest pair."""
    (found,) = sums_of(SimulatedCluster(hosts=8, link_gbit=1.0, rack_hosts=6, oversubscription=6.0, links_only=True))
    tcp_s = S * planner.TCP_WIRE_BYTES_PER_BYTE * 8 / 1e9
    one = found["halving-doubling"]
    # Distance 1: 1 of the bytes each way. Distance 2: 4-6 and 5-7 cross, two streams on a link with the rate of one
    # host's. Distance 4: 2-6 and 3-7 cross, as do none of 0-4 and 1-5.
    assert one.time_s(S) - one.waits_s == pytest.approx(tcp_s * (1 + 2 * 0.5 + 2 * 0.25), rel=AGREE)


def test_more_of_what_hinders_is_never_faster():
    base = SimulatedCluster(hosts=32, devices_per_host=4, rack_hosts=8)
    worse = {
        "hosts": [8, 32, 128],
        "devices_per_host": [1, 4, 16],
        "oversubscription": [1.0, 2.0, 8.0],
        "loss": [0.0, 0.001, 0.01, 0.1],
        "slots": [4096, 64, 1],
        "link_gbit": [100.0, 10.0, 1.0],
        "round_trip_us": [10.0, 60.0, 1000.0],
        "wire": ["int16", "full"],
        "links_only": [True, False],
    }
    found_in_turn = iter(sums_of(*(replace(base, **{name: one}) for name, values in worse.items() for one in values)))
    for name, values in worse.items():
        found = [next(found_in_turn) for _ in values]
        for scheme in SCHEMES:
            times_s = [one[scheme].time_s(S) for one in found]
            assert all(b >= a * (1 - AGREE) for a, b in itertools.pairwise(times_s)), (name, scheme, times_s)


def test_narrow_lanes_take_their_share_of_the_wire():
    base = SimulatedCluster(hosts=4, link_gbit=1.0)
    full, int16, int8, int4 = (
        found["passing"] for found in sums_of(*(replace(base, wire=wire) for wire in ("full", "int16", "int8", "int4")))
    )
    for narrow, share in ((int16, 2), (int8, 4), (int4, 8)):
        assert narrow.link_bytes * share == full.link_bytes
        assert narrow.s_per_byte * share == pytest.approx(full.s_per_byte, rel=AGREE)
        closed = planner.predict(planner.Cluster(4, link_gbit=1.0), "passing", S // 4, wire=narrow.cluster.wire)
        assert narrow.time_s(S) == pytest.approx(closed.time_s, rel=AGREE)


def test_slots_bound_the_rate():
    """Eight chunks of 1440 bytes in flight, once around in 100 us."""
    (found,) = sums_of(SimulatedCluster(hosts=4, link_gbit=100.0, slots=8, round_trip_us=100.0), schemes=("passing",))
    assert found["passing"].bound == "the window of slots"
    assert found["passing"].s_per_byte == pytest.approx(100e-6 / (8 * 1440), rel=AGREE)


def test_goodput_goes_through_what_was_measured():
    assert goodput_under_loss(0.0) == goodput_under_loss(1e-6) == 1.0
    for loss, share in GOODPUT_UNDER_LOSS:
        assert goodput_under_loss(loss) == pytest.approx(share, rel=1e-12)
    assert 0.47 < goodput_under_loss(0.02) < 0.885


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"hosts": 0}, "hosts are 1 to 4096, not 0"),
        ({"hosts": 5000}, "hosts are 1 to 4096, not 5000"),
        ({"devices_per_host": 0}, "1 device or more"),
        ({"link_gbit": float("inf")}, "link_gbit is above 0 and finite"),
        ({"in_host_gbit": 0.0}, "in_host_gbit is above 0 and finite"),
        ({"rack_hosts": 65}, "1 to 64 hosts, not 65"),
        ({"oversubscription": 2.0}, "set rack_hosts"),
        ({"oversubscription": 0.5, "rack_hosts": 4}, "1 or more, not 0.5"),
        ({"loss": 0.5}, "from 0 to 0.2, not 0.5"),
        ({"slots": 0}, "slots are 1 or more"),
        ({"round_trip_us": 0.0}, "more than 0 us"),
        ({"wire": "int2"}, "full, int16, int8, int4, not 'int2'"),
        ({"wire": "int4"}, "'int4' adds up at most 7 hosts, not 8: take a wider wire"),
        ({"wire": "int8", "hosts": 128}, "'int8' adds up at most 127 hosts, not 128: take a wider wire"),
    ],
)
def test_what_cant_be_simulated_is_refused(wrong, said):
    with pytest.raises(ConfigError, match=said):
        SimulatedCluster(**{"hosts": 8, **wrong})


def test_an_unknown_scheme_is_refused():
    with pytest.raises(ConfigError, match="no scheme 'tree-ring'. Take some of passing"):
        simulate_sums([SimulatedCluster(hosts=2)], ["tree-ring"])


def test_schemes_that_cant_be_are_left_out():
    (six,) = sums_of(SimulatedCluster(hosts=6))
    assert SCHEMES.keys() - six.keys() == {"halving-doubling", "tree", "in-rack"}
    (many,) = sums_of(SimulatedCluster(hosts=64, devices_per_host=2, rack_hosts=8, wire="int8"))
    assert SCHEMES.keys() - many.keys() == {"flat", "server-flat"}  # 128 ranks are one too many for the wire

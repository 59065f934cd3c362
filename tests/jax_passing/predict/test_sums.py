"""Predicted sums, against the floors of each scheme, times worked out by hand, and common sense."""

import itertools
from dataclasses import replace

import pytest

from jax_passing.errors import ConfigError
from jax_passing.predict import constants
from jax_passing.predict.cluster import GOODPUT_UNDER_LOSS, Cluster, goodput_under_loss
from jax_passing.predict.schemes import SCHEMES
from jax_passing.predict.sums import all_costs, costs, predict

S = 64 << 20
AGREE = 1e-10


def sums_of(*clusters, schemes=tuple(SCHEMES)):
    return [all_costs(cluster, schemes) for cluster in clusters]


@pytest.mark.parametrize(("hosts", "devices"), [(2, 1), (4, 4), (64, 8), (512, 16)])
def test_floors_are_exact(hosts, devices):
    """The bytes that a host sends, and receives, in each scheme, as the known formulas have them."""
    H, G = hosts, devices
    (found,) = sums_of(Cluster(hosts=H, devices_per_host=G, rack_hosts=2))
    udp, tcp = constants.UDP_WIRE_BYTES_PER_BYTE, constants.TCP_WIRE_BYTES_PER_BYTE
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
        assert found[scheme].of(1.0).link_bytes == pytest.approx(floor, rel=1e-12), scheme


def test_oversubscribed_racks():
    """Eight racks of 16 hosts; a rack's link has a quarter of its hosts' rate."""
    base = Cluster(hosts=128, link_gbit=1.0, rack_hosts=16, links_only=True)
    plain, crowded = sums_of(base, replace(base, oversubscription=4.0))
    wire_s = S * constants.UDP_WIRE_BYTES_PER_BYTE * 8 / 1e9
    tcp_s = S * constants.TCP_WIRE_BYTES_PER_BYTE * 8 / 1e9

    def net_s(one):
        return one.of(S).time_s - one.waits_s

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
    (found,) = sums_of(Cluster(hosts=8, link_gbit=1.0, rack_hosts=6, oversubscription=6.0, links_only=True))
    tcp_s = S * constants.TCP_WIRE_BYTES_PER_BYTE * 8 / 1e9
    one = found["halving-doubling"]
    # Distance 1: 1 of the bytes each way. Distance 2: 4-6 and 5-7 cross, two streams on a link with the rate of one
    # host's. Distance 4: 2-6 and 3-7 cross, as do none of 0-4 and 1-5.
    assert one.of(S).time_s - one.waits_s == pytest.approx(tcp_s * (1 + 2 * 0.5 + 2 * 0.25), rel=AGREE)


def test_more_of_what_hinders_is_never_faster():
    base = Cluster(hosts=32, devices_per_host=4, rack_hosts=8)
    worse = {
        "hosts": [8, 32, 128],
        "devices_per_host": [1, 4, 16],
        "oversubscription": [1.0, 2.0, 8.0],
        "loss": [0.0, 0.001, 0.01, 0.1],
        "link_gbit": [100.0, 10.0, 1.0],
        "round_trip_us": [10.0, 60.0, 1000.0],
        "links_only": [True, False],
    }
    found_in_turn = iter(sums_of(*(replace(base, **{name: one}) for name, values in worse.items() for one in values)))
    for name, values in worse.items():
        found = [next(found_in_turn) for _ in values]
        for scheme in SCHEMES:
            times_s = [one[scheme].of(S).time_s for one in found]
            assert all(b >= a * (1 - AGREE) for a, b in itertools.pairwise(times_s)), (name, scheme, times_s)


def test_narrow_lanes_take_their_share_of_the_wire():
    cluster = Cluster(4, link_gbit=1.0)
    waits_s = costs(cluster, "passing").waits_s
    full, int16, int8, int4 = (
        predict(cluster, "passing", S // 4, wire_dtype=one) for one in ("full", "int16", "int8", "int4")
    )
    for narrow, share in ((int16, 2), (int8, 4), (int4, 8)):
        assert narrow.link_bytes * share == full.link_bytes
        assert (narrow.time_s - waits_s) * share == pytest.approx(full.time_s - waits_s, rel=AGREE)


def test_goodput_goes_through_what_was_measured():
    assert goodput_under_loss(0.0) == goodput_under_loss(1e-6) == 1.0
    for loss, share in GOODPUT_UNDER_LOSS:
        assert goodput_under_loss(loss) == pytest.approx(share, rel=1e-12)
    shares = dict(GOODPUT_UNDER_LOSS)
    assert shares[0.05] < goodput_under_loss(0.02) < shares[0.01]


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
        ({"shards": -1}, "shards are 0 or more"),
        ({"shards": 9, "colocated": True}, "1 to 8 of them, not 9"),
        ({"shards": 2, "colocated": True, "rack_hosts": 4}, "hosts without racks"),
        ({"shard_link_gbit": 0.0}, "shard_link_gbit is above 0"),
        ({"shared_cores": -1}, "shared_cores are 0 or more"),
        ({"round_trip_us": 0.0}, "more than 0 us"),
    ],
)
def test_what_nothing_can_be_predicted_for_is_refused(wrong, said):
    with pytest.raises(ConfigError, match=said):
        Cluster(**{"hosts": 8, **wrong})


def test_an_unknown_scheme_is_refused():
    with pytest.raises(ConfigError, match="no scheme 'tree-ring'. Take some of passing"):
        all_costs(Cluster(hosts=2), ["tree-ring"])


def test_schemes_that_cant_be_are_left_out():
    (six,) = sums_of(Cluster(hosts=6))
    assert SCHEMES.keys() - six.keys() == {"halving-doubling", "tree", "in-rack"}

"""Predicted collectives in which each host has a part, against bytes worked out by hand."""

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from jax_passing.commands import cli
from jax_passing.predict import constants
from jax_passing.predict.cluster import Cluster
from jax_passing.predict.parts import predict_collectives
from jax_passing.predict.sums import predict

S = 64 << 20
MIB = 2**18  # elements of float32
FRAME, HEADER = constants.UDP_FRAME_BYTES_PER_BYTE, 62 / 1440
EXPONENTS = FRAME * 8 / 1024


def collectives(cluster, size_bytes=S):
    return {one.collective: one for one in predict_collectives(cluster, size_bytes)}


@pytest.mark.parametrize("hosts", [2, 3, 8])
def test_bytes_each_way(hosts):
    """Lanes of what the others need or have, headers for the rest; exponents of sums both ways."""
    own, others = 1 / hosts, 1 - 1 / hosts
    first, second = own * FRAME + others * HEADER, others * FRAME + own * HEADER
    expected = {
        "psum_scatter": (second + EXPONENTS, first + EXPONENTS),
        "all_gather": (first, second),
        "both at once": (first + second + EXPONENTS,) * 2,
        "broadcast": (FRAME, FRAME),
    }
    found = collectives(Cluster(hosts, link_gbit=1))
    assert found.keys() == expected.keys()
    for name, (up, down) in expected.items():
        assert found[name].up_bytes == pytest.approx(up * S, rel=1e-12), name
        assert found[name].down_bytes == pytest.approx(down * S, rel=1e-12), name
        assert found[name].bound == "the host's link"
        assert found[name].time_s == pytest.approx(max(up, down) * S * 8 / 1e9, abs=1e-3), name


def test_both_at_once_take_the_time_of_one_sum_and_their_headers():
    cluster = Cluster(8, link_gbit=1)
    both, whole = collectives(cluster)["both at once"], predict(cluster, "passing", S // 4)
    assert both.time_s == pytest.approx(whole.time_s, rel=0.05)
    assert both.all_lanes_s == pytest.approx(2 * whole.time_s, rel=0.01)
    assert both.native_s / both.time_s > 1.7


def test_a_switch_that_wants_all_lanes_takes_a_sum_for_each():
    for cluster in (Cluster(4, link_gbit=1), Cluster(4, link_gbit=1, shards=2), Cluster(100, link_gbit=400)):
        found, whole = collectives(cluster), predict(cluster, "passing", S // 4)
        assert found["psum_scatter"].all_lanes_s == pytest.approx(whole.time_s, rel=1e-12)
        assert all(one.time_s <= one.all_lanes_s * (1 + 1e-12) for one in found.values())


def test_shards_behind_links_of_hosts():
    """Each host's link carries what it sends to the other shards, and the results of its own shard to the others."""
    found = collectives(Cluster(4, link_gbit=1, shards=4, colocated=True))["all_gather"]
    up, down = 1 / 4 * FRAME + 3 / 4 * HEADER, 3 / 4 * FRAME + 1 / 4 * HEADER
    assert found.up_bytes == pytest.approx(3 / 4 * (up + down) * S)


def test_one_host_sends_nothing():
    for one in collectives(Cluster(1, 4)).values():
        assert (one.up_bytes, one.down_bytes) == (0, 0)


def test_plan_has_them():
    def run(*more):
        return CliRunner().invoke(cli.app, ["plan", "--hosts", "8", "--link-gbit", "1", *more]).stdout

    table = run()
    for one in predict_collectives(Cluster(8, link_gbit=1), S):
        assert one.collective in table
        assert f"{one.down_bytes / 2**20:.1f}" in table
    found = json.loads(run("--json"))["collectives"]
    assert found == [dataclasses.asdict(one) for one in predict_collectives(Cluster(8, link_gbit=1), S)]

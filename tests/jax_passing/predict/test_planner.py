import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from jax_passing.collective.primitives import operands
from jax_passing.commands import cli, plan_table
from jax_passing.predict import constants
from jax_passing.predict.cluster import Cluster
from jax_passing.predict.sums import SCHEME_OF, choose, costs, predict

MIB = 2**18  # elements of float32
ROUNDED = 1 - 1e-12
clusters = st.builds(
    Cluster,
    hosts=st.integers(1, 64),
    devices_per_host=st.integers(1, 8),
    link_gbit=st.sampled_from([0.5, 1.0, 10.0, 100.0, 400.0]),
    shards=st.integers(0, 8),
)


def ratio(cluster, slower, faster, mebibytes=1024):
    return predict(cluster, slower, mebibytes * MIB).time_s / predict(cluster, faster, mebibytes * MIB).time_s


def test_parameter_servers_share_the_cores_too():
    """The table of `plan --shared-cores` compares like with like: a server behind each link adds up what shards do."""
    shared = Cluster(8, link_gbit=400, shards=8, colocated=True, shared_cores=2)
    size = 64 * MIB
    single, colocated = (costs(shared, scheme).of(4 * size) for scheme in ("server", "shards"))
    assert single.bound == colocated.bound == "the shared processors"
    assert colocated.time_s == pytest.approx(predict(shared, "passing", size).time_s, rel=1e-12)


def test_one_shard_is_a_parameter_server():
    for cluster in (Cluster(8, 2, 1.0), Cluster(8, 2, 400.0), Cluster(64, 4, 10.0, shared_cores=2)):
        passing = predict(dataclasses.replace(cluster, shards=1), "passing", MIB)
        server = costs(cluster, "server").of(4 * MIB)
        assert passing.time_s == pytest.approx(server.time_s, rel=1e-12)
        assert passing.link_bytes == pytest.approx(server.link_bytes, rel=1e-12)


def test_headers_and_exponents_cost_less_than_six_percent():
    assert 1.04 < constants.UDP_WIRE_BYTES_PER_BYTE < 1.06


def test_two_hosts_gain_nothing_and_eight_nearly_twice():
    assert ratio(Cluster(2, link_gbit=1), "native", "passing") == pytest.approx(1, abs=0.06)
    assert 1.75 < ratio(Cluster(8, link_gbit=1), "native", "passing") < 1.85


def test_a_switch_behind_one_link_loses_to_the_ring():
    assert ratio(Cluster(8, link_gbit=1, shards=1), "passing", "native") > 4
    assert choose(Cluster(8, link_gbit=1, shards=1), 64 * MIB, ("passing", "native")) == "native"
    assert choose(Cluster(8, link_gbit=1, shards=8), 64 * MIB, ("passing", "native")) == "passing"
    assert choose(Cluster(8, link_gbit=1, shards=1, shard_link_gbit=10), 64 * MIB, ("passing", "native")) == "passing"


def test_shards_share_what_a_switch_adds_up():
    one, two = (predict(Cluster(64, link_gbit=400, shards=shards), "passing", 64 * MIB) for shards in (1, 2))
    assert one.bound == two.bound == "the switch's processor"
    assert two.time_s == pytest.approx(one.time_s / 2, rel=1e-3)


def test_shards_behind_links_of_hosts():
    """At host 0's link: its own bytes stay on the host, those of the others don't."""
    at_host_0 = Cluster(4, link_gbit=1, shards=1, colocated=True)
    size = 64 * MIB
    wire = 4 * size * constants.UDP_WIRE_BYTES_PER_BYTE
    assert predict(at_host_0, "passing", size).link_bytes == pytest.approx(3 * wire)
    two = Cluster(4, link_gbit=1, shards=2, colocated=True)
    assert predict(two, "passing", size).link_bytes == pytest.approx((1 / 2 + 3 / 2) * wire)


def test_small_sums_wait_for_round_trips():
    small = predict(Cluster(8, link_gbit=10), "passing", 256)
    assert small.bound == "latency"
    assert small.time_s < predict(Cluster(8, link_gbit=10), "native", 256).time_s


def test_a_fast_link_is_bound_by_a_processor():
    assert "processor" in predict(Cluster(8, link_gbit=400), "passing", 64 * MIB).bound
    shared = Cluster(8, link_gbit=2, shared_cores=2)
    assert predict(shared, "native", 64 * MIB).bound == "the shared processors"


def test_a_trees_switches_add_up_what_64_workers_send():
    """In a level more, which costs a round trip."""
    whole, tree = (predict(Cluster(hosts, link_gbit=400), "passing", 64 * MIB) for hosts in (64, 1024))
    assert tree.bound == "the switch's processor"
    assert tree.time_s == pytest.approx(whole.time_s + constants.ROUND_TRIP_US * 1e-6)
    assert tree.link_bytes == whole.link_bytes
    # Where all of them share cores, these do it all.
    whole, tree = (predict(Cluster(hosts, shared_cores=2), "passing", MIB) for hosts in (64, 1024))
    assert tree.shared_processors_s == pytest.approx(16 * whole.shared_processors_s)


def test_one_host_has_no_link():
    for strategy in ("passing", "native"):
        assert predict(Cluster(1, 4), strategy, MIB).link_bytes == 0
    assert choose(Cluster(1), MIB, ("passing", "native")) in SCHEME_OF


def test_of_equals_the_first_is_chosen():
    same = Cluster(4, 1)
    assert choose(same, MIB, ("passing", "flat")) == "passing"
    assert choose(same, MIB, ("flat", "passing")) == "flat"
    assert choose(same, MIB, ("native",)) == "native"


def test_native_sends_narrow_elements_as_they_are():
    two = Cluster(2, link_gbit=1)
    assert choose(two, 64 * MIB, ("passing", "native")) == "passing"
    assert choose(two, 64 * MIB, ("passing", "native"), "int8") == "native"


def test_bfloat16_halves_what_a_switch_gets():
    half, whole = (predict(Cluster(4, link_gbit=1), "passing", MIB, dtype) for dtype in ("bfloat16", "float32"))
    assert half.link_bytes == whole.link_bytes / 2


@given(clusters, st.sampled_from(list(SCHEME_OF)), st.integers(0, 2**32))
def test_more_takes_longer(cluster, strategy, size):
    now = predict(cluster, strategy, size)
    assert math.isfinite(now.time_s)
    assert now.time_s >= 0
    assert predict(cluster, strategy, size + MIB).time_s >= now.time_s * ROUNDED
    faster = dataclasses.replace(cluster, link_gbit=cluster.link_gbit * 2)
    assert predict(faster, strategy, size).time_s * ROUNDED <= now.time_s
    if cluster.shards:
        more = dataclasses.replace(cluster, shards=cluster.shards + 1)
        assert predict(more, strategy, size).time_s * ROUNDED <= now.time_s


@given(clusters, st.integers(0, 2**32))
def test_passing_is_never_slower_than_flat_where_the_network_counts(cluster, size):
    # Where processors are the limit, flat's devices each have a thread of their own.
    passing, flat = (predict(cluster, s, size) for s in ("passing", "flat"))
    if "link" in passing.bound:
        assert passing.time_s <= flat.time_s


def test_every_dtype_has_its_lanes():
    assert set(constants.LANE_BYTES) == set(constants.NATIVE_BYTES) == set(operands.SUPPORTED_DTYPES)


@pytest.mark.parametrize(
    ("time_s", "text"),
    [(1.2345, "1.23 s"), (0.5604, "560 ms"), (0.01234, "12.3 ms"), (0.00012, "120 us"), (0, "0.00 us")],
)
def test_times_are_readable(time_s, text):
    assert plan_table.seconds(time_s) == text


def plan(*arguments):
    return CliRunner().invoke(cli.app, ["plan", *arguments], env={"COLUMNS": "140"})


def test_plan_prints_all_strategies_and_the_reason():
    result = plan("--hosts", "8", "--devices-per-host", "2", "--bytes", "64M", "--link-gbit", "1")
    assert result.exit_code == 0
    for name in (*SCHEME_OF, "parameter server", "co-located"):
        assert name in result.stdout
    assert "565 ms" in result.stdout
    assert "auto takes passing" in result.stdout


def test_plan_tells_who_loses():
    assert "Two hosts gain no bandwidth" in plan("--hosts", "2", "--link-gbit", "1").stdout
    single = plan("--hosts", "8", "--link-gbit", "1", "--shards", "1").stdout
    assert "auto takes native" in single
    assert "a parameter server" in single
    too_many = plan("--hosts", "64", "--devices-per-host", "2").stdout
    assert "more than the 64 of one switch" in too_many


def test_plan_of_a_tree():
    flat = plan("--hosts", "512", "--devices-per-host", "2").stdout
    assert "a tree of switches with 64 ports each" in flat
    assert "flat needs" not in flat
    assert "2048 are more than the 1024 of a tree" in plan("--hosts", "1024", "--devices-per-host", "2").stdout
    assert plan("--hosts", "1025").exit_code != 0


def test_plan_as_json():
    found = json.loads(plan("--hosts", "8", "--bytes", "1.5MB", "--link-gbit", "1", "--json").stdout)
    cluster, elements = Cluster(8, link_gbit=1), 3 * 2**17
    assert found["cluster"] == dataclasses.asdict(cluster)
    assert (found["size_bytes"], found["dtype"], found["auto"]) == (4 * elements, "float32", "passing")
    ours = {one["strategy"]: one["time_s"] for one in found["predictions"]}
    assert ours["native"] == predict(cluster, "native", elements).time_s
    assert ours.keys() > {*SCHEME_OF}


@pytest.mark.parametrize(
    "arguments",
    [
        ("2", "--shards", "3", "--colocated"),
        ("65", "--shards", "2"),
        ("2", "--link-gbit", "inf"),
        ("2", "--shards", "1", "--shard-link-gbit", "inf"),
    ],
)
def test_plan_refuses_nonsense(arguments):
    result = plan("--hosts", *arguments)
    assert result.exit_code != 0
    assert "Nothing can be predicted for this" in str(result.exception)

"""A switch checks a rank before it admits it: each rule by itself, then as hosts and racks hear of it."""

import dataclasses
import itertools
from functools import reduce

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.jobs.admission import Abilities, RefusalError, common_lanes, least, rank_of_host, rank_of_rack
from support.switch.control import join_of_version, scenario
from support.switch.control_trees import circle, in_tree, job

NEWER = messages.PROTOCOL_VERSION + 1
RACK = Abilities("rack", 1024, 360, False, False, None)
SPINE = Abilities("spine", 256, 64, True, False, 100.0)
FACTS = {"strategy": "flat", "jaxlib": "0.10.0"}
JOIN = messages.Join(messages.PROTOCOL_VERSION, "a", 0, 2, ("x", "y"), 9, "process", 5.0, link_gbit=25.0, alike=FACTS)


def test_a_rank_takes_along_what_its_host_said_and_what_switches_can_do():
    at_rack = rank_of_host(JOIN, "10.0.0.1", RACK)
    assert (at_rack.rank, at_rack.world_size, at_rack.host, at_rack.shards) == (0, 2, "10.0.0.1", 2)
    assert (at_rack.alike, at_rack.link_gbit, at_rack.switch_link_gbit) == (FACTS, 25.0, None)
    at_spine = rank_of_rack(at_rack, SPINE)
    assert (at_spine.slot_count, at_spine.lanes_per_chunk, at_spine.whole_chunks) == (256, 64, True)
    assert (at_spine.path, at_spine.link_gbit, at_spine.switch_link_gbit) == (("rack", "spine"), 25.0, 100.0)


@pytest.mark.parametrize(
    ("here", "path", "expected"),
    [(2232, 2232, 2232), (2232, 1000, 1000), (2232, 100, 360), (64, 2232, 64), (1000, 2232, 1000)],
)
def test_the_lanes_are_those_of_the_path_but_no_more_than_the_switch_takes(here, path, expected):
    join = msgspec.structs.replace(JOIN, lanes=path)
    assert rank_of_host(join, "h", dataclasses.replace(RACK, lanes_per_chunk=here)).lanes_per_chunk == expected
    whole = dataclasses.replace(RACK, lanes_per_chunk=here, whole_chunks=True)
    assert rank_of_host(join, "h", whole).lanes_per_chunk == here


@scenario(slots_per_job=256)
async def test_the_shortest_path_decides_and_slots_of_long_chunks_are_fewer(switch):
    switch.data_plane.lanes_per_chunk = 2232
    for paths, lanes, slots in (((2232, 2232), 2232, 32), ((2232, 721), 721, 64), ((2232, 360), 360, 256)):
        hosts = [await switch.join(rank, 2, job=str(lanes), lanes=path) for rank, path in enumerate(paths)]
        for host in hosts:
            welcome = await host.receive()
            assert (welcome.lanes_per_chunk, welcome.slot_count) == (lanes, slots)
    assert [(job.lanes_per_chunk, job.slot_count) for job in switch.data_plane.running.values()] == [
        (2232, 32),
        (721, 64),
        (360, 256),
    ]
    firsts = [job.slot_first for job in switch.data_plane.running.values()]
    assert firsts == [0, 256, 512]  # each takes the room of 256 slots of 360 lanes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 2}, "isn't below the world size"),
        ({"path": ("spine", "rack")}, "lead in a circle"),
        ({"path": tuple("abcdefgh")}, "at most 8 levels"),
        ({"slot_count": 48}, "power of two"),
        ({"lanes_per_chunk": 32}, "32 and 64, and one takes no fewer"),
    ],
)
def test_ranks_that_a_rack_may_not_bring(changes, message):
    join = msgspec.structs.replace(rank_of_host(JOIN, "h", RACK), **changes)
    with pytest.raises(RefusalError, match=message):
        rank_of_rack(join, SPINE)


@given(st.lists(st.tuples(st.sampled_from([32, 64, 128, 360]), st.booleans()), min_size=1, max_size=4))
def test_lanes_dont_depend_on_who_comes_first(switches):
    results = set()
    for order in itertools.permutations(switches):
        try:
            results.add(reduce(common_lanes, order))
        except RefusalError:
            results.add(None)
    assert len(results) == 1
    (result,) = results
    fixed = {lanes for lanes, whole in switches if whole}
    lowest = min(lanes for lanes, _ in switches)
    assert result == ((lowest, bool(fixed)) if fixed <= {lowest} else None)


def test_the_least_of_what_is_known():
    assert least(None, 3.0, 2.0) == 2.0
    assert least(None) is None


@scenario()
async def test_hosts_that_arent_alike_hear_of_it_too_if_others_dont_come(switch):
    hosts = [await switch.join(rank, 3, alike={"axis_name": "d" * rank}, join_deadline_s=2.0) for rank in (0, 1)]
    assert "Besides: Rank 1 of job 'a' has axis_name d, rank 0 has none." in await hosts[0].refusal()


@scenario()
async def test_a_stranger_in_a_place_that_is_taken_ends_nothing(switch):
    first = await switch.join(0, alike={"jax": "1"})
    await switch.has(0)
    assert "was taken" in await (await switch.join(0, alike={"jax": "2"})).refusal()
    second = await switch.join(1, alike={"jax": "1"})
    assert isinstance(await first.receive(), messages.Welcome)
    assert isinstance(await second.receive(), messages.Welcome)
    assert "is running" in await (await switch.join(1, alike={"jax": "2"})).refusal()


@pytest.mark.parametrize("foreign_first", [False, True])
@pytest.mark.parametrize(
    ("version", "changes", "older"),
    [(1, {"strategy": "passing", "devices": 0}, "that host"), (99, {"alike": ["of another kind"]}, "the switch")],
)
def test_all_hosts_hear_of_a_protocol_version_that_the_switch_doesnt_speak(foreign_first, version, changes, older):
    @scenario()
    async def run(switch):
        async def foreign():
            host = await switch.connect()
            host.send(join_of_version(version, switch, 1, **changes))
            return host

        hosts = [await foreign()] if foreign_first else []
        hosts.append(await switch.join(0, alike={"jax": "1"}))
        hosts += [] if foreign_first else [await foreign()]
        for host in hosts:
            refusal = await host.refusal()
            assert f"protocol version {messages.PROTOCOL_VERSION}, rank 1 of job 'a' version {version}." in refusal
            assert f"Upgrade jax_passing on {older}:" in refusal

    run()


@scenario()
async def test_hosts_that_all_speak_another_version_are_refused(switch):
    hosts = [await switch.connect() for _ in range(2)]
    for rank, host in enumerate(hosts):
        host.send(join_of_version(1, switch, rank))
    for host in hosts:
        assert "ranks 0, 1 of job 'a' version 1. Upgrade jax_passing on those hosts" in await host.refusal()


@scenario()
async def test_a_host_may_call_a_fact_as_we_call_the_protocols_version(switch):
    hosts = [await switch.join(rank, alike={"protocol version": "no number" * rank}) for rank in range(2)]
    for host in hosts:
        assert "has protocol version 'no number', rank 0 has none" in await host.refusal()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 1025}, "at most 1024 ranks"),
        ({"rank": 2}, "Rank 2 isn't below the world size 2"),
        ({"world_size": 3, "rank": 1}, "says world_size 3, but rank 0 of job 'a' said 2"),
        ({"rank": 1, "switches": ("x", "y")}, "Rank 1 lists 2 switches, rank 0 lists 1. All hosts of job"),
        ({"rank": 1, "switches": ("x",)}, "Ranks 1 and 0 differ in the switches that they list as number 1."),
        ({"rank": 0}, "Rank 0 of job 'a' was taken by a process at 127.0.0.1"),
    ],
)
def test_refusals_say_why(changes, message):
    @scenario()
    async def run(switch):
        waiting = await switch.join(0)
        await switch.has(0)
        refused = await switch.join(**{"rank": 1, "world_size": 2, **changes})
        assert message in await refused.refusal()
        other = await switch.join(1)  # the job hasn't suffered
        assert isinstance(await other.receive(), messages.Welcome)
        assert isinstance(await waiting.receive(), messages.Welcome)

    run()


@scenario()
async def test_hosts_that_list_the_same_switches_in_another_order(switch):
    await switch.join(0, switches=(switch.instance, "y"))
    await switch.has(0)
    (epoch,) = switch.plane.jobs.epochs()
    message = "Ranks 1 and 0 differ in the switches that they list as number "
    refused = await (await switch.join(1, switches=("y", switch.instance))).refusal()
    assert message + "1, 2" in refused
    assert message in await (await switch.join(1, switches=("x", "y", switch.instance))).refusal()
    assert message in epoch.refusal  # for the one who waits


@in_tree(racks=0)
async def test_the_least_that_a_switch_can_do_holds_for_all(tree, root):
    root.data_plane.lanes_per_chunk = 256
    small = await tree.add(root, slots_per_job=64, link_gbit=40.0)
    narrow = await tree.add(root)
    narrow.data_plane.lanes_per_chunk, narrow.data_plane.whole_chunks = 128, True
    hosts = [await small.join(0, 2, link_gbit=25.0), await narrow.join(1, 2, link_gbit=10.0)]
    for host in hosts:
        welcome = await host.receive()
        assert (welcome.slot_count, welcome.lanes_per_chunk, welcome.whole_chunks) == (64, 128, True)
        assert (welcome.link_gbit, welcome.switch_link_gbit) == (10.0, 40.0)
    assert {switch.data_plane.running[1].slot_count for switch in (root, small, narrow)} == {64}


@in_tree()
async def test_switches_whose_packets_dont_fit_together_are_refused(tree, root, left, right):
    for rack, lanes in ((left, 64), (right, 128)):
        rack.data_plane.lanes_per_chunk, rack.data_plane.whole_chunks = lanes, True
    await left.join(0, 2)
    await root.has(0)
    assert "64 and 128, and one takes no fewer" in await (await right.join(1, 2)).refusal()


@in_tree(racks=0)
async def test_more_ranks_than_a_switch_has_workers(tree, root):
    racks = [await tree.add(root) for _ in range(4)]
    for switch in (root, *racks):
        switch.data_plane.worker_limit = 33
    hosts, _ = await job(*racks, each=33)
    assert len(hosts) == 132
    assert "adds up what 33 hosts send" in await (await overfull(racks[0], 34)).refusal()


async def overfull(switch, count):
    """The last of so many hosts at one switch."""
    hosts = [await switch.join(rank, count, job="b") for rank in range(count)]
    return hosts[-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 3}, "says world_size 3, but ranks 0, 1 of job 'a' said 4"),
        ({"rank": 1}, "Rank 1 of job 'a' was taken by a process at 127.0.0.1"),
        ({"switches": ("x", "y")}, "Rank 2 lists 2 switches, rank 0 lists 1."),
        ({"rank": 4}, "Rank 4 isn't below the world size 4"),
    ],
)
def test_refusals_reach_the_one_host_of_another_rack(changes, message):
    @in_tree()
    async def run(tree, root, left, right):
        hosts = [await left.join(rank, 4) for rank in (0, 1)]
        await root.has(0, 1)
        refused = await right.join(**{"rank": 2, "world_size": 4, **changes})
        assert message in await refused.refusal()
        hosts += [await right.join(rank, 4) for rank in (2, 3)]  # the job hasn't suffered
        for host in hosts:
            assert isinstance(await host.receive(), messages.Welcome)

    run()


@pytest.mark.parametrize("odd", [1, 3], ids=["beside rank 0", "in the other rack"])
def test_hosts_that_arent_alike_hear_of_it_all_in_all_racks(odd):
    @in_tree()
    async def run(tree, root, left, right):
        facts = [{"jax": "0.10.0" if rank == odd else "0.10.2"} for rank in range(4)]
        hosts = [
            await switch.join(rank, 4, alike=facts[rank])
            for switch, ranks in ((left, (0, 1)), (right, (2, 3)))
            for rank in ranks
        ]
        for host in hosts:
            assert f"ank {odd}" in (refusal := await host.refusal())
            assert "0.10.0" in refusal
            assert "0.10.2" in refusal
        await job(left, right)  # nothing is left of them

    run()


@in_tree()
async def test_a_rack_of_another_protocol_version(tree, root, left, right):
    rack = await root.connect()
    rack.send(messages.RackJoin(1, "a", "r", "far:1", 4242))
    assert "the switch at far:1 version 1. Upgrade jax_passing on that switch" in await rack.refusal()


@pytest.mark.parametrize("more", [{"color": "red"}, {"data_host": 7}, {"udp_port": "many"}], ids=str)
def test_a_rack_of_a_newer_version_is_named_whatever_else_it_says(more):
    @in_tree(racks=0)
    async def run(tree, root):
        rack = await root.connect()
        join = {"type": "rackjoin", "job": "a", "instance": "r", "name": "far:1", "udp_port": 7}
        rack.send(msgspec.json.encode(join | {"protocol_version": NEWER} | more) + b"\n")
        assert f" version {NEWER}. Upgrade jax_passing on the switch" in await rack.refusal()

    run()


@in_tree(racks=1)
async def test_a_job_named_like_a_shard_is_refused(tree, root, rack):
    for switch in (root, rack):
        assert "Choose another one" in await (await switch.join(0, 2, job="x/shard 1")).refusal()


@in_tree(racks=0)
async def test_parents_in_a_circle_are_refused(tree, root):
    one, _ = await circle(tree)
    assert "lead in a circle" in await (await one.join(0, 2)).refusal()

"""How an epoch starts, at one switch and in a tree: slots, multicast or not, the data plane, welcome."""

import asyncio

import pytest

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.data_planes.data_plane import DataPlaneError
from jax_passing.switch.jobs.group_probe import ROUNDS
from jax_passing.switch.jobs.slot_partition import SlotPartition
from support.switch.control import GROUP, offered, scenario, until
from support.switch.control_trees import hear, in_tree, job, join_all, rack_says


@scenario()
async def test_a_job_starts_when_all_ranks_are_here(switch):
    first = await switch.join(1, 3)
    second = await switch.join(2, 3)
    await switch.has(1, 2)
    assert not switch.data_plane.running
    third = await switch.join(0, 3)
    nonces = set()
    for worker, host in enumerate((third, first, second)):
        welcome = await host.receive()
        assert welcome == messages.Welcome(1, 1, 0, 256, worker, 360, nonce=welcome.nonce)
        nonces.add(welcome.nonce)
    assert [len(nonce) for nonce in nonces] == [32]
    assert [port for _, port in switch.data_plane.running[1].addresses] == [1000, 1001, 1002]
    assert {ip for ip, _ in switch.data_plane.running[1].addresses} == {"127.0.0.1"}
    assert switch.data_plane.running[1].own_addresses == ("127.0.0.1",) * 3


@scenario(link_gbit=40.0)
async def test_all_hosts_hear_of_the_slowest_link(switch):
    hosts = [await switch.join(rank, 3, link_gbit=rate) for rank, rate in enumerate([10.0, None, 2.5])]
    for host in hosts:
        welcome = await host.receive()
        assert (welcome.link_gbit, welcome.switch_link_gbit, welcome.ranks_at_port) == (2.5, 40.0, 3)


@scenario()
async def test_nobody_may_know_the_links(switch):
    _, welcome = await switch.job()
    assert (welcome.link_gbit, welcome.switch_link_gbit, welcome.ranks_at_port) == (None, None, 1)


@scenario()
async def test_what_the_data_plane_can_do(switch):
    switch.data_plane.lanes_per_chunk, switch.data_plane.whole_chunks, switch.data_plane.worker_limit = 64, True, 2
    _, welcome = await switch.job()
    assert (welcome.lanes_per_chunk, welcome.whole_chunks) == (64, True)
    waiting = [await switch.join(rank, 3, job="b", join_deadline_s=3.0) for rank in range(2)]
    await switch.has(0, 1, job="b")
    assert "adds up what 2 hosts send" in await (await switch.join(2, 3, job="b")).refusal()
    for host in waiting:
        assert "a switch for each, with --parent" in await host.refusal()


@scenario(slots_per_job=512)
async def test_jobs_get_slots_of_their_own_until_none_are_left(switch):
    _, one = await switch.job(job="one")
    two_hosts, two = await switch.job(job="two")
    assert {one.slot_first, two.slot_first} == {0, 512}
    assert one.job_id != two.job_id
    waiting = [await switch.join(rank, job="three") for rank in range(2)]
    for host in waiting:
        assert "no 512 free slots of its 1024" in await host.refusal("NoSlotsError")
    for host in two_hosts:
        host.send(messages.Leave())
    assert await two_hosts[0].receive() == messages.Bye()
    _, three = await switch.job(job="three")
    assert three.slot_first == two.slot_first


@pytest.mark.parametrize("error", [DataPlaneError("it is off"), KeyError("what")], ids=repr)
def test_a_traceback_is_logged_of_what_nobody_expects_of_a_device(caplog, error):
    caplog.set_level("ERROR", logger="jax_passing.switch")

    def fail(*_):
        raise error

    @scenario()
    async def run(switch):
        hosts, welcome = await switch.job()
        good = vars(switch.data_plane)
        switch.data_plane.add_job = switch.data_plane.remove_job = switch.data_plane.slot_version = fail
        hosts[0].send(messages.Query(welcome.slot_first, 0), messages.Leave())
        hosts[1].send(messages.Leave())
        assert "no way to tell" in (await hosts[0].receive()).trouble
        assert [await host.receive() for host in hosts] == [messages.Bye()] * 2
        for host in [await switch.join(rank) for rank in range(2)]:
            assert str(error) in await host.refusal()
        del good["add_job"], good["remove_job"], good["slot_version"]
        switch.data_plane.running.clear()
        await switch.job()

    run()
    said = (
        "the data plane can't say what slot 0 holds",
        "the data plane didn't remove it",
        "the data plane refused it",
    )
    assert len(caplog.records) == len(said)
    for record, what in zip(caplog.records, said, strict=True):
        assert what in record.getMessage()
        assert record.getMessage().endswith(f": {error}")
        assert bool(record.exc_info) == isinstance(error, KeyError)


@scenario()
async def test_a_group_that_all_hear_is_used(switch):
    hosts, nonce = await offered(switch)
    for host in hosts:
        assert not switch.data_plane.probes
        host.send(messages.GroupReady(nonce))
    await until(lambda: switch.data_plane.probes)
    assert switch.data_plane.probes[0] == (1, 1, nonce)
    for host in hosts:
        host.send(messages.GroupHeard(nonce))
    for host in hosts:
        assert (await host.receive()).multicast
    assert switch.data_plane.running[1].group == GROUP


@scenario()
async def test_a_group_that_one_doesnt_hear_is_not_used(switch):
    hosts, nonce = await offered(switch, 3)
    for host in hosts:
        host.send(messages.GroupReady(nonce))
    for host in hosts[1:]:
        host.send(messages.GroupHeard(nonce))
    for host in hosts:
        assert not (await host.receive()).multicast
    assert switch.data_plane.running[1].group is None
    assert len(switch.data_plane.probes) == ROUNDS
    hosts[0].send(messages.GroupHeard(nonce), messages.Heartbeat())  # too late
    assert await hosts[0].receive() == messages.Heartbeat()
    assert switch.data_plane.running[1].group is None


@scenario()
async def test_who_goes_while_the_group_is_probed_is_waited_for_again(switch):
    hosts, nonce = await offered(switch)
    for host in hosts:
        host.send(messages.GroupReady(nonce))
    await until(lambda: switch.data_plane.probes)
    hosts[1].writer.close()
    await switch.has(0)
    await asyncio.sleep(0.3)
    assert not switch.data_plane.running
    hosts[1] = await switch.join(1)
    again = [await host.receive() for host in hosts]
    assert again[0] == again[1]
    assert again[0].nonce != nonce
    for host in hosts:  # what was said of the first attempt doesn't count
        host.send(messages.GroupReady(nonce), messages.GroupHeard(nonce), messages.GroupReady(again[0].nonce))
    await asyncio.sleep(0.02)
    assert not switch.data_plane.running
    for host in hosts:
        host.send(messages.GroupHeard(again[0].nonce))
    for host in hosts:
        assert (await host.receive()).multicast


@scenario()
async def test_a_rank_is_taken_while_the_group_is_probed(switch):
    hosts, _ = await offered(switch)
    assert "Rank 1 of job 'a' was taken" in await (await switch.join(1)).refusal()
    for host in hosts:
        assert isinstance(await host.receive(), messages.Welcome)


@scenario()
async def test_one_rank_needs_no_group(switch):
    switch.data_plane.offered = GROUP
    _, welcome = await switch.job(1)
    assert not welcome.multicast


@scenario()
async def test_a_group_that_is_lost_is_given_up_for_all(switch):
    hosts, nonce = await offered(switch, 3)
    for host in hosts:
        host.send(messages.GroupReady(nonce), messages.GroupHeard(nonce))
    for host in hosts:
        assert (await host.receive()).multicast
    for host in hosts[1:]:
        host.send(messages.GroupLost(), messages.Heartbeat())
        assert await host.receive() == messages.Heartbeat()
    assert switch.data_plane.stopped == [1]  # once
    assert switch.plane.stats()["groups_lost"] == 1


@in_tree()
async def test_a_job_starts_when_all_ranks_of_all_racks_are_here(tree, root, left, right):
    hosts = [await right.join(rank, 4) for rank in (3, 1)] + [await left.join(2, 4)]
    await root.has(1, 2, 3)
    assert not root.data_plane.running
    hosts.append(await left.join(0, 4))
    welcomes = [await host.receive() for host in hosts]
    assert [welcome.worker for welcome in welcomes] == [1, 0, 1, 0]  # by rank, among the hosts of a rack
    (at_root,) = root.data_plane.running.values()
    assert [port for _, port in at_root.addresses] == [4242, 4242]
    assert at_root.parent is None
    for rack, worker, ports in ((left, 0, [1000, 1002]), (right, 1, [1001, 1003])):
        (at_rack,) = rack.data_plane.running.values()
        assert [port for _, port in at_rack.addresses] == ports
        above = at_rack.parent
        assert (above.job, above.epoch, above.slot_first) == (at_root.job, at_root.epoch, at_root.slot_first)
        assert (above.worker, above.address, above.socket) == (worker, ("127.0.0.1", 4242), None)


@in_tree(racks=1)
async def test_hosts_beside_racks(tree, root, rack):
    hosts = [await rack.join(1, 3), await root.join(0, 3), await rack.join(2, 3)]
    assert [(await host.receive()).worker for host in hosts] == [0, 0, 1]
    assert [port for _, port in root.data_plane.running[1].addresses] == [1000, 4242]


@pytest.mark.parametrize("parent_takes_them", [True, False])
def test_lanes_are_left_out_below_a_parent_that_knows_it(parent_takes_them):
    @in_tree(racks=1)
    async def run(tree, root, rack):
        root.data_plane.takes_bare, rack.data_plane.takes_bare = parent_takes_them, True
        hosts = [await root.join(0, 2), await rack.join(1, 2)]
        assert [(await host.receive()).bare for host in hosts] == [parent_takes_them] * 2

    run()


# 64 ranks of a rack may share its switch's port, and the port of the switch above them with other racks.
@pytest.mark.parametrize(("root_has", "rack_has", "shared"), [(0, 0, [1, 1]), (1, 0, [2, 2]), (0, 1, [1, 3])])
def test_hosts_hear_how_many_share_a_port_on_their_way(root_has, rack_has, shared):
    @in_tree(racks=1)
    async def run(tree, root, rack):
        root.data_plane.has_one_port = lambda own_addresses: own_addresses == {"127.0.0.1"} and root_has
        rack.data_plane.has_one_port = lambda own_addresses: own_addresses == {"127.0.0.1"} and rack_has
        hosts = [await root.join(0, 4), *[await rack.join(rank, 4) for rank in (1, 2, 3)]]
        welcomes = [await host.receive() for host in hosts]
        assert [welcome.ranks_at_port for welcome in welcomes] == [shared[0], *3 * [shared[1]]]

    run()


@in_tree()
async def test_each_switch_finds_out_for_itself_who_hears_multicast(tree, root, left, right):
    left.data_plane.offered = GROUP
    hosts = await join_all(left, right)
    offers = [await host.receive() for host in hosts[:2]]
    await asyncio.sleep(0.05)
    assert not root.data_plane.running
    for host, offer in zip(hosts, offers, strict=False):
        host.send(messages.GroupReady(offer.nonce), messages.GroupHeard(offer.nonce))
    assert [(await host.receive()).multicast for host in hosts] == [True, True, False, False]


@in_tree()
async def test_a_data_plane_that_hears_no_group_is_sent_its_own_results(tree, root, left, right):
    root.data_plane.offered = GROUP
    await job(left, right)
    assert root.data_plane.running[1].group is None


@in_tree()
async def test_who_goes_while_switches_prepare_is_waited_for_again(tree, root, left, right):
    left.data_plane.offered = GROUP
    hosts = await join_all(left, right)
    assert isinstance(await hosts[0].receive(), messages.GroupOffer)
    await until(lambda: any(epoch.attempt for epoch in right.plane.jobs.epochs()))
    hosts[3].writer.close()
    await right.has(2)
    left.data_plane.offered = None
    hosts[3] = await right.join(3, 4)
    for host in hosts:
        while isinstance(message := await host.receive(), messages.GroupOffer):
            pass
        assert isinstance(message, messages.Welcome)
    for switch in (root, left, right):
        assert len(switch.data_plane.running) == 1


@in_tree(slots_per_job=512)
async def test_a_switch_without_free_slots_ends_the_joins_only(tree, root, left, right):
    root.plane.jobs.starts._partition = SlotPartition(4096)
    for name in ("one", "two"):
        hosts = [await left.join(rank, 2, job=name) for rank in range(2)]
        for host in hosts:
            assert isinstance(await host.receive(), messages.Welcome)
    waiting = await join_all(left, right, job="three")
    for host in waiting:
        assert f"switch at {left.name} has no 512 free slots of its 1024" in await host.refusal("NoSlotsError")


@in_tree()
async def test_a_data_plane_that_refuses_ends_the_epoch_by_name(tree, root, left, right):
    left.data_plane.refuses = True
    hosts = await join_all(left, right)
    for host in hosts[:2]:
        message = await host.refusal()
        assert left.name in message
        assert "no table space" in message
    for host in hosts[2:]:
        while isinstance(message := await host.receive(), messages.Welcome):
            pass
        assert message.kind == "JoinError"
    left.data_plane.refuses = False
    await job(left, right)


@in_tree()
async def test_a_host_that_hears_the_group_no_longer_is_its_racks_concern(tree, root, left, right):
    for rack in (left, right):
        rack.data_plane.offered = GROUP
    hosts = await join_all(left, right)
    await hear(hosts)
    assert [(await host.receive()).multicast for host in hosts] == [True] * 4
    hosts[3].send(messages.GroupLost(), messages.Heartbeat())
    assert await hosts[3].receive() == messages.Heartbeat()  # the job goes on
    assert [switch.data_plane.stopped for switch in (root, left, right)] == [[], [], [1]]


@in_tree(racks=0)
async def test_a_parents_group_that_a_rack_hears_no_longer(tree, root):
    root.data_plane.offered = GROUP
    first = await root.join(0, 2)
    rack = await root.connect()
    rack.send(messages.RackJoin(messages.PROTOCOL_VERSION, "a", "r", "far:1", 4242), rack_says(1))
    assert isinstance(messages.decode_from_parent(await rack.reader.readline()), messages.Prepare)
    await hear([first, rack])
    rack.send(messages.Prepared(1))
    assert [(await member.receive()).multicast for member in (first, rack)] == [True, True]
    rack.send(messages.GroupLost(), messages.Heartbeat())
    assert await rack.receive() == messages.Heartbeat()
    assert root.data_plane.stopped == [1]
    assert root.plane.stats()["groups_lost"] == 1

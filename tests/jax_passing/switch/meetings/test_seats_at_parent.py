"""Hosts that meet at several switches of a tree before they join."""

import asyncio

import pytest

from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.caller import CONNECT_TIMEOUT_S
from jax_passing.switch.jobs import quotas
from jax_passing.switch.meetings import seats_at_parent
from support.switch.control import Host, until
from support.switch.control_trees import circle, in_tree, parent_that
from support.switch.seats import meet, met, seat


@in_tree()
async def test_the_root_decides_for_hosts_of_all_racks(tree, root, left, right):
    hosts = [await seat(switch, rank, 3, 3) for rank, switch in enumerate((left, right, root))]
    heard = await met(*hosts)
    assert [one.rank for one in heard] == [0, 1, 2]
    assert "meetings" not in left.plane.held()
    hosts[1].writer.close()
    for rank in (0, 2):
        hosts[rank].send(meet(rank, 3, 1, wait_s=0.0, step=4, meeting=heard[0].meeting, hosts=3))
    again = await met(hosts[0], hosts[2])
    assert [(one.rank, one.step) for one in again] == [(0, 4), (1, 4)]


@in_tree(racks=1)
async def test_a_newcomer_of_a_rack_compiles_first(tree, root, rack):
    first = await seat(root, 0, 2, 1, wait_s=0.0)
    await met(first)
    joined = await root.join(0, 1, job="a", instance="host 0")
    assert isinstance(await joined.receive(), messages.Welcome)
    newcomer = await seat(rack, 1, 2, 1, rehearses=True)
    assert await newcomer.receive() == messages.Rehearse(2)
    newcomer.send(meet(1, 2, 1))
    assert (await joined.receive()).kind == "HostJoinedError"


@in_tree(racks=1)
async def test_a_root_that_is_gone_ends_the_seats_below_it(tree, root, rack):
    host = await seat(rack, 0, 2, 2)
    await until(lambda: "meetings" in root.plane.held())
    host.send(messages.Query())
    assert (
        f"Of the hosts of job 'a', 1 came to this switch. Its parent, the switch at {root.name}, waits"
        in (await host.receive()).trouble
    )
    await root.server.shut_down()
    assert await host.receive() is None


@in_tree(racks=0)
async def test_hosts_hear_within_a_second_of_a_parent_that_is_stopped(tree, root):
    """It takes the connection, and says nothing: hosts may meet at a standby meanwhile."""

    async def says_nothing(reader, writer):
        await reader.read()
        writer.close()

    async with parent_that(says_nothing) as parent:
        rack = await tree.add(parent)
        began = asyncio.get_running_loop().time()
        host = await seat(rack, 0, 2, 2)
        assert (await host.receive()).kind == "SwitchUnreachableError"
        assert asyncio.get_running_loop().time() - began < CONNECT_TIMEOUT_S


def of_job(job, host):
    return {"job": job, "instance": f"{job} {host}"}


@in_tree(racks=0, connections_per_address=3)
async def test_a_racks_hosts_take_one_connection_of_its_parent_for_each_job(tree, root):
    rack = await tree.add(root, connections_per_address=100)
    jobs = {
        name: [await seat(rank=rank, switch=rack, world_size=8, **of_job(name, rank)) for rank in range(8)]
        for name in "ab"
    }
    for hosts in jobs.values():
        await met(*hosts)
    assert len(root.server.streams) == 2
    hosts = jobs["a"]
    hosts[0].writer.close()
    for rank in range(1, 8):
        hosts[rank].send(meet(rank, 8, wait_s=0.0, hosts=7, **of_job("a", rank)))
    await met(*hosts[1:])
    for host in hosts[1:]:
        host.writer.close()
    await until(lambda: len(root.server.streams) == 1)
    assert root.plane.held() == {"meetings": 1, "seats of racks": 8, "connections": 1}
    assert rack.plane.held()["jobs whose hosts meet at the parent"] == 1
    assert root.plane.stats().keys() & {"connections_refused", "connections_displaced"} == set()


@in_tree(racks=1)
async def test_a_newcomer_of_a_rack_that_isnt_like_the_others_is_refused_alone(tree, root, rack):
    hosts = [await seat(rack, rank, 3, 2, wait_s=0.0, alike={"wire_dtype": "full"}) for rank in range(2)]
    (first, _) = await met(*hosts)
    newcomer = await seat(rack, 2, 3, 2, alike={"wire_dtype": "int8"})
    assert "the hosts that run job 'a' have full" in await newcomer.refusal("ConfigError")
    for rank, host in enumerate(hosts):
        host.send(meet(rank, 3, 2, wait_s=0.0, step=4, meeting=first.meeting, hosts=2, alike={"wire_dtype": "full"}))
    await met(*hosts)


@in_tree(racks=1)
async def test_the_root_knows_the_address_of_a_racks_host(tree, root, rack):
    streams = await asyncio.open_connection(*rack.address, local_addr=("127.0.0.2", 0))
    rack.hosts.append(Host(*streams))
    rack.hosts[-1].send(meet(0, started_as=3))
    await until(lambda: root.plane.held().get("seats of racks") == 1)
    (host,) = root.plane.meetings.by_job["a"]._seats
    assert host.who == "rank 0 (127.0.0.2, started as rank 3)"


@in_tree(racks=1)
async def test_a_host_that_gives_up_or_talks_nonsense_takes_nobody_along(tree, root, rack):
    hosts = [await seat(rack, rank, 4, 4) for rank in range(2)]
    for line in (messages.Leave(), meet(2, job="b")):
        other = await seat(rack, 2, 4, 4)
        other.send(line)
        assert await other.receive() is None
    late = await seat(rack, 2, 4, 4, deadline_s=0.2)
    assert "that rank 2 waited" in await late.refusal("TooFewHostsError")
    hosts += [await seat(rack, 2, 4, 4), await seat(rack, 3, 4, 4)]
    await met(*hosts)


@in_tree(racks=0)
async def test_the_seats_of_one_address_have_so_much_room_and_no_more(tree, root):
    quotas.RANKS_PER_ADDRESS, usual = 3, quotas.RANKS_PER_ADDRESS
    try:
        racks = [await tree.add(root), await tree.add(root)]
        hosts = [await seat(racks[rank % 2], rank, 4, 4) for rank in range(3)]
        await until(lambda: root.plane.held().get("seats of racks") == 3)
        refusal = await (await seat(racks[1], 3, 4, 4)).refusal()
        assert refusal == "3 hosts have seats here through switches at 127.0.0.1, as many as may be."
        assert root.plane.stats()["joins_refused"] == 1
        hosts.append(await seat(root, 3, 4, 4))  # a host has a connection for its seat: they are counted
        await met(*hosts)
    finally:
        quotas.RANKS_PER_ADDRESS = usual


@in_tree(racks=0)
async def test_a_rack_whose_host_speaks_of_another_job_leaves_nothing(tree, root):
    rack = await root.connect()
    said = meet(0)
    rack.send(messages.RackMeet(0, said), messages.RackMeet(0), messages.RackMeet(1, meet(1, job="b")))
    assert await rack.receive() is None
    await until(lambda: root.plane.held() == {})


@in_tree()
async def test_through_several_levels(tree, root, spine, other):
    racks = [await tree.add(spine), await tree.add(spine), await tree.add(other)]
    hosts = [await seat(switch, rank, 3, 3) for rank, switch in enumerate(racks)]
    await met(*hosts)
    for host in hosts:
        host.writer.close()
    await until(lambda: not any(switch.plane.held() for switch in (*racks, spine, other, root)))


@in_tree(racks=0)
async def test_hosts_that_are_refused_leave_nothing_at_any_level(tree, root):
    middle = await tree.add(root)
    rack = await tree.add(middle)
    for instance in "abc":
        host = await seat(rack, 0, 4, 4, deadline_s=0.2, instance=instance)
        assert "that rank 0 waited" in await host.refusal("TooFewHostsError")
        assert await host.receive() is None
        host.writer.close()
    await until(lambda: not any(switch.plane.held() for switch in (rack, middle, root)))


@in_tree(racks=0, connections_per_address=1)
async def test_a_parent_that_is_full_is_named_to_all_hosts_of_a_rack(tree, root):
    await seat(root, 0)
    rack = await tree.add(root, connections_per_address=9)
    expected = f"The switch at {root.name} refuses the one at {rack.name}: 127.0.0.1 has 1 connections to this switch"
    for host in [await seat(rack, rank) for rank in range(1, 5)]:
        assert (await host.refusal()).startswith(expected)


@in_tree(racks=1)
async def test_a_parent_that_falls_silent_ends_the_seats(tree, root, rack):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seats_at_parent, "LEASE_MAX_S", 0.3)
        host = await seat(rack, 0, 2, 2)
        await until(lambda: "meetings" in root.plane.held())
        for stream in root.server.streams:
            stream.send = lambda _: True
        assert await host.receive() is None


@in_tree(racks=0)
async def test_switches_that_are_each_others_parents(tree, root):
    one, other = await circle(tree)
    host = await seat(one, 0)
    assert "lead in a circle" in await host.refusal()
    host.writer.close()
    await until(lambda: one.plane.held() == other.plane.held() == {})

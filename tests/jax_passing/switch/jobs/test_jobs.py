"""The jobs of a switch, and of a tree: who waits for whom, who is refused, how an epoch goes on and ends."""

import asyncio

from jax_passing.protocol import control_messages as messages
from jax_passing.switch.jobs import quotas
from support.switch.control import scenario, until
from support.switch.control_trees import in_tree, job, kill, rack_says


@scenario()
async def test_the_same_process_may_come_back_before_its_old_connection_is_gone(switch):
    hosts = [await switch.join(rank, instance=f"p{rank}") for rank in range(2)]
    assert isinstance(await hosts[1].receive(), messages.Welcome)
    again = [await switch.join(0, instance="p0")]
    failed = await hosts[1].receive()
    assert (failed.kind, failed.ranks) == ("HostLostError", (0,))
    again.append(await switch.join(1, instance="p1"))
    assert (await again[0].receive()).epoch == 2
    assert (await again[1].receive()).epoch == 2


def test_ranks_of_one_address_have_so_much_room_and_no_more(monkeypatch):
    monkeypatch.setattr(quotas, "RANKS_PER_ADDRESS", 5)

    @in_tree(racks=0)
    async def run(tree, root):
        for name in "ab":
            rack = await root.connect()
            rack.send(messages.RackJoin(messages.PROTOCOL_VERSION, name, "r", "far:1", 4242))
            for rank in range(3):
                rack.send(rack_says(rank, 9))
            await root.has(*range(3 if name == "a" else 2), job=name)
        refused = await rack.receive()
        assert (refused.rank, refused.message) == (
            2,
            "5 ranks are here through switches at 127.0.0.1, as many as may be.",
        )
        await root.join(8, 9, job="c")  # a host has one connection for each rank: they are counted
        await root.has(8, job="c")

    run()


@in_tree()
async def test_a_running_job_takes_nobody_else_at_any_rack(tree, root, left, right):
    await job(left, right)
    for switch in (left, right, await tree.add(root)):
        assert "is running (epoch 1) and rank 1 is in it" in await (await switch.join(1, 4)).refusal()


@in_tree()
async def test_ranks_that_are_absent_anywhere_are_named(tree, root, left, right):
    hosts = [await left.join(0, 5, join_deadline_s=2.0), await right.join(3, 5, join_deadline_s=2.0)]
    for host in hosts:
        message = await host.refusal()
        assert "anks 1, 2, 4 of job 'a'" in message or "anks 0, 1, 2, 4" in message or "anks 1 to 4" in message, message
        assert "2.0 s that rank" in message
    await job(left, right)


@in_tree()
async def test_those_who_wait_elsewhere_hear_why_a_host_was_refused(tree, root, left, right):
    waiting = await left.join(0, 2, join_deadline_s=3.0)
    await root.has(0)
    await right.join(1, 2, switches=(right.instance, "y"))
    assert "One host was refused: Rank 1 lists 2 switches" in await waiting.refusal()


@in_tree()
async def test_who_gives_up_waiting_at_a_rack_frees_the_rank(tree, root, left, right):
    gone = await left.join(0, 2)
    await root.has(0)
    gone.writer.close()
    await root.has()
    hosts = [await right.join(rank, 2) for rank in range(2)]
    for host in hosts:
        assert isinstance(await host.receive(), messages.Welcome)
    assert not left.data_plane.running


@in_tree()
async def test_the_same_process_may_come_back_at_another_rack(tree, root, left, right):
    await left.join(0, 2, instance="p0")
    await root.has(0)
    hosts = [await right.join(0, 2, instance="p0"), await right.join(1, 2)]
    for host in hosts:
        assert isinstance(await host.receive(), messages.Welcome)


@in_tree()
async def test_shards_of_a_job_meet_each_for_itself(tree, root, one, two):
    """In-rack mode: each rack's hosts run the rack's switches, and all shards go to one root."""
    racks = [(one, two), (await tree.add(root), await tree.add(root))]
    hosts = []
    for rack, switches in enumerate(racks):
        listed = tuple(switch.instance for switch in switches)
        for rank in (2 * rack, 2 * rack + 1):
            hosts += [await switch.join(rank, 4, switches=listed) for switch in switches]
    for host in hosts:
        assert isinstance(await host.receive(), messages.Welcome)
    assert [len(job.addresses) for job in root.data_plane.running.values()] == [2, 2]
    numbers = {switch: switch.data_plane.running[1].parent.job for pair in racks for switch in pair}
    assert numbers[one] == numbers[racks[1][0]] != numbers[two] == numbers[racks[1][1]]


@in_tree(racks=0)
async def test_a_host_beside_racks_that_are_spread_over_several_spines(tree, root):
    spines = (root, await tree.add())
    racks = [await tree.add(spine) for spine in spines]
    hosts = []
    for rank, switches in ((1, racks), (2, racks), (0, spines)):
        listed = tuple(switch.instance for switch in switches)
        hosts += [await switch.join(rank, 3, switches=listed) for switch in switches]
    for host in hosts:
        assert isinstance(await host.receive(), messages.Welcome)
    assert [[port for _, port in spine.data_plane.running[1].addresses] for spine in spines] == [[1000, 4242]] * 2
    swapped = tuple(spine.instance for spine in reversed(spines))
    assert "0 and 0 differ in the switches" in await (await root.join(0, 3, switches=swapped)).refusal()


@in_tree()
async def test_rank_0_is_relayed_to_all_racks_in_order(tree, root, left, right):
    hosts, _ = await job(left, right)
    sent = [bytes([number]) * (number * 997) for number in range(100)] + [b"x" * messages.RELAY_BYTES_MAX]
    hosts[0].send(*[messages.Relay(payload) for payload in sent])
    for host in hosts[1:]:
        assert [(await host.receive()).payload for _ in sent] == sent


@in_tree()
async def test_others_are_relayed_to_rank_0_alone(tree, root, left, right):
    hosts, _ = await job(left, right)
    for host in (3, 1, 2):
        order = messages.RELAYED_ORDER + bytes([host])
        hosts[host].send(messages.Relay(order))
        assert (await hosts[0].receive()).payload == order
    hosts[0].send(messages.Relay(b"last"))
    for host in hosts[1:]:
        assert (await host.receive()).payload == b"last"


@in_tree()
async def test_all_hosts_hear_of_the_first_that_leaves(tree, root, left, right):
    hosts, _ = await job(left, right)
    hosts[2].send(messages.Leave(7))
    for host in (hosts[0], hosts[1], hosts[3]):
        assert await host.receive() == messages.Left((2,), 7, "rank 2")
    for host in hosts[:2]:
        host.send(messages.Leave(7))
    (epoch,) = right.plane.jobs.epochs()
    await until(lambda: epoch.left == {0, 1, 2})
    hosts[3].send(messages.Query())
    assert await hosts[3].receive() == messages.SlotState(left=(0, 1, 2))


@in_tree()
async def test_leave_is_a_barrier_over_all_racks(tree, root, left, right):
    hosts, _ = await job(left, right)
    for host in hosts[:3]:
        host.send(messages.Leave())
    (epoch,) = right.plane.jobs.epochs()
    await until(lambda: epoch.left == {0, 1, 2})
    hosts[3].send(messages.Query())
    assert await hosts[3].receive() == messages.SlotState(left=(0, 1, 2))
    hosts[0].writer.close()  # who left may go
    await asyncio.sleep(0.05)
    hosts[3].send(messages.Leave())
    for host in hosts[1:]:
        assert await host.receive() == messages.Bye()
        assert await host.receive() is None
    for switch in (root, left, right):
        await until(lambda switch=switch: not switch.data_plane.running)
    await job(left, right)


@in_tree()
async def test_a_lost_host_is_named_in_all_racks(tree, root, left, right):
    hosts, _ = await job(left, right)
    bystanders, _ = await job(left, right, job="b")
    hosts[2].writer.close()
    for rank in (0, 1, 3):
        failed = await hosts[rank].receive()
        assert (failed.kind, failed.ranks) == ("HostLostError", (2,))
        assert "Rank 2 closed its connection" in failed.message
        assert await hosts[rank].receive() is None
    bystanders[0].send(messages.Heartbeat())
    assert await bystanders[0].receive() == messages.Heartbeat()
    for epoch in (1, 2):  # of the root; all join again
        hosts, _ = await job(left, right)
        assert left.data_plane.running[1].parent.epoch == epoch + 1
        hosts[0].send(messages.Fail("DeadlineExceededError", "late"))
        assert (await hosts[3].receive()).message == "late (Reported by rank 0.)"


@in_tree()
async def test_a_lost_rack_is_named_with_its_ranks(tree, root, left, right):
    hosts, _ = await job(left, right)
    await kill(right)
    for host in hosts[:2]:
        failed = await host.receive()
        assert (failed.kind, failed.ranks) == ("HostLostError", (2, 3))
        assert f"The switch at {right.name} (ranks 2, 3) closed its connection" in failed.message
    await job(left, await tree.add(root))


@in_tree()
async def test_what_a_switch_tells_everybody_lets_nobody_take_its_place(tree, root, left, right):
    hosts, _ = await job(left, right)
    other = await root.connect()
    other.send(messages.RackJoin(messages.PROTOCOL_VERSION, "a", right.instance, "far:1", 4242))
    other.send(messages.RankJoin(2, 4, "i", "h", 1, {}, 9.0, 9.0, 256, 360, False, ("r",)))
    assert "is running (epoch 1) and rank 2 is in it" in (await other.receive()).message
    for host in hosts:
        host.send(messages.Heartbeat())
        assert await host.receive() == messages.Heartbeat()


@in_tree()
async def test_a_racks_switch_restarts_while_a_job_runs(tree, root, left, right):
    hosts, _ = await job(left, right)
    address = right.address
    await kill(right)
    again = await tree.add(root, listen=address)  # its hosts find it where it was
    assert (await hosts[0].receive()).kind == "HostLostError"
    hosts, _ = await job(left, again)
    hosts[0].send(messages.Relay(b"order"))
    for host in hosts[1:]:
        assert await host.receive() == messages.Relay(b"order")

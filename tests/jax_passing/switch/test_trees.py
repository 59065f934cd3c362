"""Control planes of several levels, over real loopback sockets, in front of data planes that record what they do."""

import asyncio
import contextlib
import itertools

import pytest
from control import Switch, in_loop, until
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_passing.host import shard
from jax_passing.protocol import control_messages as messages
from jax_passing.switch import member_conversation, questions
from jax_passing.switch.data_plane import Group, SlotVersion
from jax_passing.switch.epochs import State
from jax_passing.switch.slot_partition import SlotPartition


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Longer than this process, which stands for all switches and hosts, may be stopped."""
    monkeypatch.setattr(questions, "PATIENCE_S", 5.0)


class Tree:
    """A root with racks below it; `racks` may have racks themselves, by `add`."""

    def __init__(self, stack, changes):
        self._stack, self._changes = stack, changes

    async def add(self, parent=None, **changes):
        address = None if parent is None else parent.address
        switch = Switch(**{"parent": address, **self._changes, **changes})
        return await self._stack.enter_async_context(switch)


def scenario(racks=2, **changes):
    """Runs an async test function with a root and its racks."""

    async def run(function):
        async with contextlib.AsyncExitStack() as stack:
            tree = Tree(stack, changes)
            root = await tree.add()
            below = [await tree.add(root) for _ in range(racks)]
            await asyncio.wait_for(function(tree, root, *below), 30)

    return in_loop(run)


async def join_all(*switches, each=2, **changes):
    """`each` hosts at every one of these switches, ranks in order."""
    world_size = each * len(switches)
    ranks = itertools.count()
    return [await switch.join(next(ranks), world_size, **changes) for switch in switches for _ in range(each)]


async def job(*switches, each=2, **changes):
    hosts = await join_all(*switches, each=each, **changes)
    welcomes = [await host.receive() for host in hosts]
    assert all(isinstance(welcome, messages.Welcome) for welcome in welcomes), welcomes
    return hosts, welcomes


# Joining.


@scenario()
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


@scenario(racks=1)
async def test_hosts_beside_racks(tree, root, rack):
    hosts = [await rack.join(1, 3), await root.join(0, 3), await rack.join(2, 3)]
    assert [(await host.receive()).worker for host in hosts] == [0, 0, 1]
    assert [port for _, port in root.data_plane.running[1].addresses] == [1000, 4242]


@scenario(racks=0)
async def test_three_levels(tree, root):
    spine, other = await tree.add(root), await tree.add(root)
    racks = [await tree.add(spine), await tree.add(spine), await tree.add(other)]
    hosts, _ = await job(*racks)
    assert len(root.data_plane.running[1].addresses) == 2
    assert [len(switch.data_plane.running[1].addresses) for switch in (spine, other)] == [2, 1]
    hosts[0].send(messages.Relay(b"order"))
    for host in hosts[1:]:
        assert await host.receive() == messages.Relay(b"order")
    hosts[5].send(messages.Fail("DeadlineExceededError", "late"))
    for host in hosts[:5]:
        assert await host.receive() == messages.Failed("DeadlineExceededError", "late (Reported by rank 5.)")
    await job(*racks)


@scenario(racks=0)
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


@scenario()
async def test_switches_whose_packets_dont_fit_together_are_refused(tree, root, left, right):
    for rack, lanes in ((left, 64), (right, 128)):
        rack.data_plane.lanes_per_chunk, rack.data_plane.whole_chunks = lanes, True
    await left.join(0, 2)
    await root.has(0)
    assert "64 and 128, and one takes no fewer" in await (await right.join(1, 2)).refusal()


@scenario(racks=0)
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
    @scenario()
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
    @scenario()
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


@scenario()
async def test_all_racks_hear_of_a_host_of_another_protocol_version(tree, root, left, right):
    hosts = [await left.join(0, 2), await right.join(1, 2, protocol_version=7)]
    for host in hosts:
        text = f"protocol version {messages.PROTOCOL_VERSION}, rank 1 of job 'a' version 7. Upgrade jax_passing on the"
        assert text in await host.refusal()


@scenario(racks=0)
async def test_a_rack_below_a_parent_of_another_protocol_version(tree, root):
    async def parent(reader, writer):
        writer.write(messages.encode(messages.Hello(1, "", 4242, "old")))
        await reader.read()

    server = await asyncio.start_server(parent, "127.0.0.1", 0)
    rack = await tree.add(root)
    rack.plane._parent = server.sockets[0].getsockname()
    refusal = await (await rack.join(0, 2)).refusal()
    assert f"speaks protocol version 1, the switch at {rack.name} version {messages.PROTOCOL_VERSION}" in refusal
    assert "Upgrade jax_passing on the switch:" in refusal
    server.close()


@scenario()
async def test_a_rack_of_another_protocol_version(tree, root, left, right):
    rack = await root.connect()
    rack.send(messages.RackJoin(1, "a", "r", "far:1", 4242))
    assert "the switch at far:1 version 1. Upgrade jax_passing on that switch" in await rack.refusal()


@scenario()
async def test_a_running_job_takes_nobody_else(tree, root, left, right):
    await job(left, right)
    for switch in (left, right, await tree.add(root)):
        assert "is running (epoch 1) and rank 1 is in it" in await (await switch.join(1, 4)).refusal()


@scenario()
async def test_ranks_that_are_absent_anywhere_are_named(tree, root, left, right):
    hosts = [await left.join(0, 5, join_deadline_s=2.0), await right.join(3, 5, join_deadline_s=2.0)]
    for host in hosts:
        message = await host.refusal()
        assert "anks 1, 2, 4 of job 'a'" in message or "anks 0, 1, 2, 4" in message or "anks 1 to 4" in message, message
        assert "2.0 s that rank" in message
    await job(left, right)


@scenario()
async def test_those_who_wait_elsewhere_hear_why_a_host_was_refused(tree, root, left, right):
    waiting = await left.join(0, 2, join_deadline_s=3.0)
    await root.has(0)
    await right.join(1, 2, switches=(right.instance, "y"))
    assert "One host was refused: Rank 1 lists 2 switches" in await waiting.refusal()


@scenario()
async def test_who_gives_up_waiting_frees_the_rank(tree, root, left, right):
    gone = await left.join(0, 2)
    await root.has(0)
    gone.writer.close()
    await root.has()
    hosts = [await right.join(rank, 2) for rank in range(2)]
    for host in hosts:
        assert isinstance(await host.receive(), messages.Welcome)
    assert not left.data_plane.running


@scenario()
async def test_the_same_process_may_come_back_at_another_rack(tree, root, left, right):
    await left.join(0, 2, instance="p0")
    await root.has(0)
    hosts = [await right.join(0, 2, instance="p0"), await right.join(1, 2)]
    for host in hosts:
        assert isinstance(await host.receive(), messages.Welcome)


@scenario()
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


@scenario(racks=0)
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


@scenario(racks=1)
async def test_a_job_named_like_a_shard_is_refused(tree, root, rack):
    for switch in (root, rack):
        assert "Choose another one" in await (await switch.join(0, 2, job="x/shard 1")).refusal()


@scenario(racks=0)
async def test_parents_in_a_circle_are_refused(tree, root):
    rack = await tree.add(root)
    root.plane._parent = rack.address
    root.plane._jobs._uplink_for = root.plane._uplink_for
    assert "lead in a circle" in await (await rack.join(0, 2)).refusal()


# Preparing.


@scenario()
async def test_each_switch_finds_out_for_itself_who_hears_multicast(tree, root, left, right):
    left.data_plane.offered = GROUP
    hosts = await join_all(left, right)
    offers = [await host.receive() for host in hosts[:2]]
    await asyncio.sleep(0.05)
    assert not root.data_plane.running
    for host, offer in zip(hosts, offers, strict=False):
        host.send(messages.GroupReady(offer.nonce), messages.GroupHeard(offer.nonce))
    assert [(await host.receive()).multicast for host in hosts] == [True, True, False, False]


@scenario()
async def test_a_data_plane_that_hears_no_group_is_sent_its_own_results(tree, root, left, right):
    root.data_plane.offered = GROUP
    await job(left, right)
    assert root.data_plane.running[1].group is None


@scenario(racks=0)
async def test_a_rack_that_hears_the_group_no_longer_tells_its_parent(tree, root):
    lost = []
    rack = await tree.add(root)
    root.plane._jobs.starts.group_lost = lambda epoch, member: lost.append(member.rack)
    await job(rack)
    (epoch,) = rack.plane._jobs.epochs()
    rack.data_plane.deaf = True
    await asyncio.sleep(0.3)
    assert not lost  # results never came to a group
    epoch.uplink._conversation._is_multicast = True
    await until(lambda: lost)
    await asyncio.sleep(0.3)
    assert lost == [rack.name]


GROUP = Group("239.192.0.1", 7172, "127.0.0.1")


@scenario()
async def test_who_goes_while_switches_prepare_is_waited_for_again(tree, root, left, right):
    left.data_plane.offered = GROUP
    hosts = await join_all(left, right)
    assert isinstance(await hosts[0].receive(), messages.GroupOffer)
    await until(lambda: any(epoch.attempt for epoch in right.plane._jobs.epochs()))
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


@scenario(slots_per_job=512)
async def test_a_switch_without_free_slots_ends_the_joins_only(tree, root, left, right):
    root.plane._jobs.starts._partition = SlotPartition(4096)
    for name in ("one", "two"):
        hosts = [await left.join(rank, 2, job=name) for rank in range(2)]
        for host in hosts:
            assert isinstance(await host.receive(), messages.Welcome)
    waiting = await join_all(left, right, job="three")
    for host in waiting:
        assert f"switch at {left.name} has no 512 free slots of its 1024" in await host.refusal()


@scenario()
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


# While a job runs.


@scenario()
async def test_rank_0_is_relayed_to_all_others_in_order(tree, root, left, right):
    hosts, _ = await job(left, right)
    sent = [bytes([number]) * (number * 997) for number in range(100)]
    hosts[0].send(*[messages.Relay(payload) for payload in sent])
    for host in hosts[1:]:
        assert [(await host.receive()).payload for _ in sent] == sent


@scenario()
async def test_nobody_but_rank_0_is_relayed(tree, root, left, right):
    hosts, _ = await job(left, right)
    hosts[2].send(messages.Relay(b"x"))
    assert (await hosts[0].receive()).ranks == (2,)


def held(bitmap, sequence=5, complete=False):
    return SlotVersion(empty=False, sequence=sequence, bitmap=bitmap, complete=complete)


@pytest.mark.parametrize(
    ("root_has", "left_has", "right_has", "missing", "trouble"),
    [
        (held(0b00), held(0b01), held(0b10), (1, 2), ""),
        (held(0b10), held(0b01), held(0b11), (1,), ""),
        (held(0b10), held(0b11), held(0b11), (), "sends doesn't reach the switch at {root}"),
        (held(0b01), held(0b11), held(0b01), (3,), ""),
        (held(0b01), held(0b11), held(0b11), (), "The switch at {right} sends doesn't reach the switch at {root}"),
        (held(0b11, complete=True), held(0b11), held(0b11), (), "at {root} sends doesn't reach the switch at {left}"),
        (SlotVersion(True, 0, 0, False), held(0b11), SlotVersion(True, 0, 0, False), (2, 3), "{left} sends doesn't"),
        (held(0b11, sequence=3), held(0b11), held(0b11, sequence=3), (2, 3), "{left} sends doesn't reach"),
        (held(0b00), held(0b11, 2**32 - 1), held(0b11, 1), (), "sends doesn't reach"),
    ],
)
def test_queries_name_the_missing_ranks_of_all_racks(root_has, left_has, right_has, missing, trouble):
    @scenario()
    async def run(tree, root, left, right):
        hosts, welcomes = await job(left, right)
        for switch, has in ((root, root_has), (left, left_has), (right, right_has)):
            switch.data_plane.held = has
        hosts[0].send(messages.Query(welcomes[0].slot_first + 3, 1))
        state = await hosts[0].receive()
        assert (state.missing, state.sequence) == (missing, left_has.sequence)
        names = {"root": root.name, "left": left.name, "right": right.name}
        assert trouble.format(**names).lower() in state.trouble.lower()
        assert bool(trouble) == bool(state.trouble)

    run()


@scenario(racks=0)
async def test_queries_travel_through_three_levels(tree, root):
    spines = [await tree.add(root), await tree.add(root)]
    racks = [await tree.add(spine) for spine in spines for _ in range(2)]
    hosts, welcomes = await job(*racks)
    for switch in (root, *spines):
        switch.data_plane.held = held(0b00)
    for rack, bitmap in zip(racks, (0b11, 0b01, 0b10, 0b11), strict=True):
        rack.data_plane.held = held(bitmap)
    hosts[6].send(messages.Query(welcomes[6].slot_first, 0))
    state = await hosts[6].receive()
    assert state.missing == (3, 4)


def test_a_host_hears_which_switch_doesnt_answer(monkeypatch):
    monkeypatch.undo()  # the patience of the other tests
    assert questions.PATIENCE_S < shard.ANSWER_S


@scenario()
async def test_a_switch_that_doesnt_answer_is_named_with_its_ranks(tree, root, left, right):
    hosts, welcomes = await job(left, right)
    root.data_plane.held = left.data_plane.held = held(0b01)

    right.plane._questions.answer = lambda *_: None
    hosts[0].send(messages.Query(welcomes[0].slot_first, 0), messages.Heartbeat())
    assert await hosts[0].receive() == messages.Heartbeat()  # nobody else waits for it
    state = await hosts[0].receive()
    assert state.missing == (1, 2, 3)
    assert f"The switch at {right.name} doesn't answer." in state.trouble


@scenario()
async def test_leave_is_a_barrier_over_all_racks(tree, root, left, right):
    hosts, _ = await job(left, right)
    for host in hosts[:3]:
        host.send(messages.Leave())
    (epoch,) = right.plane._jobs.epochs()
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


# Failing.

LEASE_S = 1.5  # this process stands for all hosts, and may be stopped for a while


@scenario()
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


@scenario(lease_s=LEASE_S)
async def test_a_silent_host_is_lost_everywhere_and_racks_are_not(tree, root, left, right):
    hosts, _ = await job(left, right)
    began = asyncio.get_running_loop().time()
    answer = messages.Heartbeat()
    while answer == messages.Heartbeat() and asyncio.get_running_loop().time() - began < 2 * LEASE_S:
        for host in hosts:
            host.send(messages.Heartbeat())
            answer = await host.receive()
        await asyncio.sleep(0.05)
    assert answer == messages.Heartbeat()
    while answer == messages.Heartbeat():
        for host in hosts[:3]:
            host.send(messages.Heartbeat())
            answer = await host.receive()
        await asyncio.sleep(0.05)
    assert (answer.kind, answer.ranks) == ("HostLostError", (3,))


async def kill(switch):
    """As SIGKILL does: its connections close, and nobody is told why."""
    switch.server._server.close()
    switch.plane._watch.stop()
    for epoch in switch.plane._jobs.epochs():
        epoch.state = State.OVER
        if epoch.uplink is not None:
            epoch.uplink.close()
    for stream in list(switch.server._streams):
        stream.give_up()
    switch.plane._jobs._jobs.clear()
    await switch.server._server.wait_closed()


@scenario()
async def test_a_lost_rack_is_named_with_its_ranks(tree, root, left, right):
    hosts, _ = await job(left, right)
    await kill(right)
    for host in hosts[:2]:
        failed = await host.receive()
        assert (failed.kind, failed.ranks) == ("HostLostError", (2, 3))
        assert f"The switch at {right.name} (ranks 2, 3) closed its connection" in failed.message
    await job(left, await tree.add(root))


async def spoken(root):
    """A job of two: rank 0 at the root, rank 1 behind a rack's switch for which the test speaks."""
    first = await root.join(0, 2)
    rack = await root.connect()
    rack.send(messages.RackJoin(messages.PROTOCOL_VERSION, "a", "r", "far:1", 4242))
    rack.send(messages.RankJoin(1, 2, "i", "h", 1, {}, 9.0, 9.0, 256, 360, False, ("r",)))
    assert messages.decode_from_parent(await rack.reader.readline()) == messages.Prepare(1, 256, 360, False)
    rack.send(messages.Prepared(1))
    assert isinstance(await first.receive(), messages.Welcome)
    return first, rack


@scenario()
async def test_what_a_switch_tells_everybody_lets_nobody_take_its_place(tree, root, left, right):
    hosts, _ = await job(left, right)
    other = await root.connect()
    other.send(messages.RackJoin(messages.PROTOCOL_VERSION, "a", right.instance, "far:1", 4242))
    other.send(messages.RankJoin(2, 4, "i", "h", 1, {}, 9.0, 9.0, 256, 360, False, ("r",)))
    assert "is running (epoch 1) and rank 2 is in it" in (await other.receive()).message
    for host in hosts:
        host.send(messages.Heartbeat())
        assert await host.receive() == messages.Heartbeat()


def rack_says(rank, world_size=2):
    return messages.RankJoin(rank, world_size, "i", "h", 1, {}, 9.0, 9.0, 256, 360, False, ("r",))


@pytest.mark.parametrize("several", [(), (rack_says(0), messages.RankGone(0))], ids=["never", "no longer"])
def test_a_rack_that_has_no_ranks_is_given_up(monkeypatch, several):
    monkeypatch.setattr(member_conversation, "FIRST_MESSAGE_S", 0.2)

    @scenario(racks=0)
    async def run(tree, root):
        rack = await root.connect()
        rack.send(messages.RackJoin(messages.PROTOCOL_VERSION, "a", "r", "far:1", 4242), *several)
        with contextlib.suppress(ConnectionError):
            assert await rack.receive() is None
        await until(lambda: not root.server._streams)

    run()


async def asking_rack(root):
    """One of the two racks of a job, for which the test speaks; it has asked for what is missing in a slot."""
    racks = []
    for rank in range(2):
        rack = await root.connect()
        rack.send(messages.RackJoin(messages.PROTOCOL_VERSION, "a", f"r{rank}", f"far:{rank}", 4242), rack_says(rank))
        racks.append(rack)
    for rack in racks:
        await rack.reader.readline()
        rack.send(messages.Prepared(1))
    for rack in racks:
        assert isinstance(await rack.receive(), messages.Welcome)
    root.data_plane.held = held(0b00)
    racks[0].send(messages.Ask(7, 0, 0, 5, 3600.0))
    return racks[0]


def test_nobody_waits_longer_for_an_answer_because_a_rack_says_so(monkeypatch):
    monkeypatch.setattr(questions, "PATIENCE_S", 0.2)

    @scenario(racks=0)
    async def run(tree, root):
        asking = await asking_rack(root)
        answer = messages.decode_from_parent(await asking.reader.readline())
        assert (answer.id, answer.missing, answer.trouble) == (7, (1,), "The switch at far:1 doesn't answer.")

    run()


def test_questions_of_a_rack_end_when_it_goes(monkeypatch):
    monkeypatch.setattr(questions, "PATIENCE_S", 3600.0)

    @scenario(racks=0)
    async def run(tree, root):
        asking = await asking_rack(root)
        await until(lambda: root.plane._questions.pending)
        asking.writer.close()
        await until(lambda: not root.plane._questions.pending)

    run()


async def hear(hosts):
    """The group that their switch offers."""
    for host in hosts:
        offer = messages.decode_from_parent(await host.reader.readline())
        assert isinstance(offer, messages.GroupOffer), offer
        host.send(messages.GroupReady(offer.nonce), messages.GroupHeard(offer.nonce))


@scenario()
async def test_a_host_that_hears_the_group_no_longer_is_its_racks_concern(tree, root, left, right):
    for rack in (left, right):
        rack.data_plane.offered = GROUP
    hosts = await join_all(left, right)
    await hear(hosts)
    assert [(await host.receive()).multicast for host in hosts] == [True] * 4
    hosts[3].send(messages.GroupLost(), messages.Heartbeat())
    assert await hosts[3].receive() == messages.Heartbeat()  # the job goes on
    assert [switch.data_plane.stopped for switch in (root, left, right)] == [[], [], [1]]


@scenario(racks=0)
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


@scenario()
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


@scenario(racks=0, lease_s=LEASE_S)
async def test_a_silent_rack_is_lost_when_its_lease_ends(tree, root):
    first, _ = await spoken(root)
    answer = messages.Heartbeat()
    while answer == messages.Heartbeat():
        first.send(messages.Heartbeat())
        answer = await first.receive()
        await asyncio.sleep(0.05)
    assert (answer.kind, answer.ranks) == ("HostLostError", (1,))
    assert f"The switch at far:1 (rank 1) was silent for {LEASE_S:g} s" in answer.message


@scenario()
async def test_a_lost_root_is_named_by_the_racks(tree, root, left, right):
    hosts, _ = await job(left, right)
    await kill(root)
    for host, rack in zip(hosts, (left, left, right, right), strict=True):
        failed = await host.receive()
        assert failed.kind == "SwitchLostError"
        assert f"The switch at {rack.name} lost its parent, the switch at {root.name}" in failed.message
        assert await host.receive() is None


@scenario(lease_s=LEASE_S)
async def test_a_silent_root_is_lost_when_its_lease_ends(tree, root, left, right):
    hosts, _ = await job(left, right, each=1)
    root.plane._watch.stop()
    for connection in root.server._streams:
        connection.send = lambda _: True
    answer = messages.Heartbeat()
    while answer == messages.Heartbeat():
        hosts[0].send(messages.Heartbeat())
        answer = await hosts[0].receive()
        await asyncio.sleep(0.05)
    assert answer.kind == "SwitchLostError"
    assert f"its parent, the switch at {root.name}" in answer.message


@scenario()
async def test_a_switch_that_shuts_down_says_so_to_all(tree, root, left, right):
    hosts, _ = await job(left, right)
    waiting = await right.join(0, 4, job="waits")
    await right.has(0, job="waits")
    await right.server.shut_down()
    for host in (*hosts, waiting):
        failed = await host.receive()
        assert failed.kind == "SwitchLostError"
        assert f"The switch at {right.name} is shutting down" in failed.message


@scenario(racks=1)
async def test_the_parent_may_start_later(tree, root, rack):
    address = root.address
    await kill(root)
    hosts = [await rack.join(rank, 2) for rank in range(2)]
    await asyncio.sleep(0.3)
    await tree.add(listen=address)
    for host in hosts:
        assert isinstance(await host.receive(), messages.Welcome)


@scenario(racks=1)
async def test_a_parent_that_isnt_there_is_named_at_the_join_deadline(tree, root, rack):
    await kill(root)
    host = await rack.join(0, 2, join_deadline_s=2.0)
    refused = await host.receive()
    assert refused.kind == "SwitchUnreachableError"
    assert f"The switch at {rack.name} can't reach its parent, the switch at {root.name}" in refused.message


@scenario(racks=1)
async def test_a_parent_that_isnt_a_switch(tree, root, rack):
    server = await asyncio.start_server(lambda _, writer: writer.write(b"HTTP/1.1 400\r\n\r\n"), "127.0.0.1", 0)
    rack.plane._parent = server.sockets[0].getsockname()
    refused = await (await rack.join(0, 2, join_deadline_s=2.0)).receive()
    assert refused.kind == "SwitchUnreachableError"
    server.close()


@pytest.mark.parametrize("host", ["localhost", "239.1.2.3", "0.0.0.0"])
def test_packets_of_a_rack_come_from_the_ip_address_of_one_machine(host):
    @scenario(racks=0)
    async def run(tree, root):
        rack = await root.connect()
        rack.send(messages.RackJoin(messages.PROTOCOL_VERSION, "a", "r", "far:1", 4242, host))
        assert "The switch at far:1 can't send packets from there" in await rack.refusal()

    run()


@pytest.mark.parametrize("data_host", ["localhost", "255.255.255.255"])
def test_a_parent_whose_packets_come_from_no_ip_address_of_one_machine(data_host):
    async def parent(_, writer):
        writer.write(messages.encode(messages.Hello(messages.PROTOCOL_VERSION, data_host, 4242, "p")))

    @scenario(racks=1)
    async def run(tree, root, rack):
        server = await asyncio.start_server(parent, "127.0.0.1", 0)
        rack.plane._parent = server.sockets[0].getsockname()
        refused = await (await rack.join(0, 2, join_deadline_s=2.0)).receive()
        assert refused.kind == "SwitchUnreachableError"
        assert "IP address" in refused.message
        server.close()

    run()


@scenario(racks=1)
async def test_a_parents_name_that_no_resolver_takes(tree, root, rack):
    rack.plane._parent = ("a..b", 7171)
    refused = await (await rack.join(0, 2, join_deadline_s=2.0)).receive()
    assert refused.kind == "SwitchUnreachableError"
    assert "label empty or too long" in refused.message
    rack.plane._parent = root.address
    await job(rack)


numbers = st.integers(0, 3)
foreign_messages = st.one_of(
    st.builds(messages.Left, ranks=st.lists(numbers, max_size=3).map(tuple)),
    st.builds(messages.Ask, numbers, numbers, st.integers(0, 1), numbers, st.floats(0.001, 0.01)),
    st.builds(messages.Answer, numbers, st.lists(numbers, max_size=3).map(tuple), st.booleans(), st.booleans()),
    st.builds(messages.Prepare, numbers, st.sampled_from([1, 3, 64, 1 << 16]), numbers, st.booleans()),
    st.builds(messages.Prepared, numbers),
    st.builds(messages.RankGone, numbers),
    st.builds(messages.Refused, st.sampled_from(["JoinError", "x"]), st.text(max_size=3), st.none() | numbers),
    st.builds(messages.Failed, st.sampled_from(["HostLostError", "x"]), st.text(max_size=3)),
    st.builds(messages.Welcome, numbers, numbers, numbers, numbers, numbers, numbers, st.just(0.2)),
    st.builds(messages.GroupOffer, st.just("239.192.0.1"), st.just(7), st.just(1), st.just(1), numbers),
    st.sampled_from([messages.Bye(), messages.Heartbeat(), messages.Leave(), messages.GroupLost(), b"\xff\n"]),
)


@settings(max_examples=60)
@given(st.lists(foreign_messages, max_size=6))
def test_nothing_that_a_rack_says_stops_its_parent(several):
    @scenario(racks=0)
    async def run(tree, root):
        _, rack = await spoken(root)
        rack.send(*several)
        rack.writer.close()
        await job(root, job="next")
        assert root.is_watched

    run()


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(foreign_messages, max_size=6))
def test_nothing_that_a_parent_says_stops_a_rack(several):
    async def parent(reader, writer):
        for message in (messages.Hello(messages.PROTOCOL_VERSION, "", 4242, "p"), *several):
            writer.write(message if isinstance(message, bytes) else messages.encode(message))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    @scenario(racks=1)
    async def run(tree, root, rack):
        server = await asyncio.start_server(parent, "127.0.0.1", 0)
        rack.plane._parent = server.sockets[0].getsockname()
        first = await rack.join(0, 1, job="b", join_deadline_s=0.2)
        await first.receive()
        server.close()
        rack.plane._parent = root.address
        await job(rack)
        assert rack.is_watched

    run()


BAD_LINES = [
    messages.Relay(b"x"),
    messages.Left((0,)),
    messages.Fail("KeyboardInterrupt", ""),
    messages.RankJoin(1, 2, "i", "h", 1, {}, 9.0, 9.0, 256, 360, False, ("r",)),
    messages.RankJoin(0, 2, "i", "h", 1, {}, 9.0, 9.0, 256, 2, False, ("r",)),
    messages.Fail("HostLostError", "", (77,)),
    messages.Leave(),
    messages.Bye(),
    b"\n",
    b'{"type":"ask","id":1}\n',
    b'{"type":"rankgone","rank":1024}\n',
]


@pytest.mark.parametrize("line", BAD_LINES, ids=str)
def test_a_bad_line_costs_a_rack_the_connection_alone(line):
    """Spoken by a rack that holds rank 1."""

    @scenario(racks=0)
    async def run(tree, root):
        bystanders, _ = await job(root, job="b")
        first, rack = await spoken(root)
        rack.send(line)
        failed = await first.receive()
        assert failed.kind == "HostLostError"
        assert failed.ranks == (1,)
        assert "The switch at far:1 (rank 1) sent a message that the switch doesn't understand" in failed.message
        bystanders[0].send(messages.Heartbeat())
        assert await bystanders[0].receive() == messages.Heartbeat()

    run()

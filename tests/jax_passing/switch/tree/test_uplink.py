"""A rack's switch and its parent: what passes between them, and a parent that is late, gone, silent or no switch."""

import asyncio
import contextlib
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_passing.protocol import control_messages as messages
from support.switch.control_trees import LEASE_S, in_tree, job, kill, parent_that
from support.switch.foreign_messages import foreign_messages

HELLO = messages.Hello(messages.PROTOCOL_VERSION, "", 4242, "p")


@in_tree()
async def test_a_lost_root_is_named_by_the_racks(tree, root, left, right):
    hosts, _ = await job(left, right)
    await kill(root)
    for host, rack in zip(hosts, (left, left, right, right), strict=True):
        failed = await host.receive()
        assert failed.kind == "SwitchLostError"
        assert f"The switch at {rack.name} lost its parent, the switch at {root.name}" in failed.message
        assert await host.receive() is None


@in_tree(lease_s=LEASE_S)
async def test_a_silent_root_is_lost_when_its_lease_ends(tree, root, left, right):
    await _root_falls_silent(root, left, right)


@in_tree()
async def test_a_job_has_the_lease_of_its_hosts_at_the_root(tree, root, left, right):
    await _root_falls_silent(root, left, right, lease_s=LEASE_S)


async def _root_falls_silent(root, left, right, **join):
    hosts, _ = await job(left, right, each=1, **join)
    root.plane._watch.stop()
    for connection in root.server.streams:
        connection.send = lambda _: True
    answer = messages.Heartbeat()
    while answer == messages.Heartbeat():
        hosts[0].send(messages.Heartbeat())
        answer = await hosts[0].receive()
        await asyncio.sleep(0.05)
    assert answer.kind == "SwitchLostError"
    assert f"its parent, the switch at {root.name}" in answer.message


@in_tree(racks=1)
async def test_the_parent_may_start_later(tree, root, rack):
    address = root.address
    await kill(root)
    hosts = [await rack.join(rank, 2) for rank in range(2)]
    await asyncio.sleep(0.3)
    await tree.add(listen=address)
    for host in hosts:
        assert isinstance(await host.receive(), messages.Welcome)


def test_a_parent_that_isnt_there_is_named_at_the_join_deadline(caplog):
    caplog.set_level("WARNING", logger="jax_passing.switch")

    @in_tree(racks=1)
    async def run(tree, root, rack):
        await kill(root)
        host = await rack.join(0, 2, join_deadline_s=2.0)
        refused = await host.receive()
        assert refused.kind == "SwitchUnreachableError"
        assert f"The switch at {rack.name} can't reach its parent, the switch at {root.name}" in refused.message
        assert rack.plane.stats()["joins_refused"] == 1

    run()
    away, gave_up = (record.getMessage() for record in caplog.records)  # though it was called eight times
    assert "is away: " in away
    assert gave_up.startswith("refused rank 0 of job 'a'")


@pytest.mark.parametrize("data_host", ["localhost", "255.255.255.255"])
def test_a_parent_whose_packets_come_from_no_ip_address_of_one_machine(data_host):
    async def parent(_, writer):
        writer.write(messages.encode(msgspec.structs.replace(HELLO, data_host=data_host)))

    @in_tree(racks=0)
    async def run(tree, root):
        async with parent_that(parent) as there:
            rack = await tree.add(there)
            refused = await (await rack.join(0, 2, join_deadline_s=2.0)).receive()
        assert refused.kind == "SwitchUnreachableError"
        assert "IP address" in refused.message

    run()


@in_tree(racks=0)
async def test_a_parents_name_that_no_resolver_takes(tree, root):
    rack = await tree.add(SimpleNamespace(address=("a..b", 7171)))
    refused = await (await rack.join(0, 2, join_deadline_s=2.0)).receive()
    assert refused.kind == "SwitchUnreachableError"
    assert "label empty or too long" in refused.message


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(foreign_messages, max_size=6))
def test_nothing_that_a_parent_says_stops_a_rack(several):
    async def parent(reader, writer):
        for message in (HELLO, *several):
            writer.write(message if isinstance(message, bytes) else messages.encode(message))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    @in_tree(racks=0)
    async def run(tree, root):
        async with parent_that(parent) as there:
            rack = await tree.add(there)
            await (await rack.join(0, 1, job="b", join_deadline_s=0.02)).receive()
        await tree.add(listen=there.address)
        await job(rack)
        assert rack.is_watched

    run()


class SpokenParent:
    """A parent for which the test speaks, over the connection of one job."""

    def __init__(self):
        self._called = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def with_rack(cls, tree):
        """Makes a rack's switch below it."""
        self = cls()
        async with parent_that(self._converse) as there:
            yield await tree.add(there), self

    async def _converse(self, reader, writer):
        self._reader, self.writer = reader, writer
        self.say(HELLO)
        self._called.set()

    def say(self, *several):
        self.writer.write(b"".join(map(messages.encode, several)))

    async def hear(self, *kinds):
        """Returns the next message of these kinds."""
        await self._called.wait()
        while True:
            message = messages.decode_from_member(await asyncio.wait_for(self._reader.readline(), 10))
            if isinstance(message, kinds):
                return message


WELCOME = messages.Welcome(1, 1, 0, 256, 0, 360)


@in_tree(racks=0)
async def test_nobody_has_left_a_job_before_it_runs(tree, root):
    """A rank that has left may be silent, and nobody would notice."""
    async with SpokenParent.with_rack(tree) as (rack, parent):
        host = await rack.join(0, 2)
        await parent.hear(messages.RankJoin)
        parent.say(messages.Left((0,)), counts_on(1, 0))
        await parent.hear(messages.Prepared)
        parent.say(WELCOME)
        assert isinstance(await host.receive(), messages.Welcome)
        host.send(messages.Query())
        assert (await host.receive()).left == ()


@in_tree(racks=0)
async def test_a_rack_that_hears_the_group_no_longer_tells_its_parent_once(tree, root):
    async with SpokenParent.with_rack(tree) as (rack, parent):
        await rack.join(0, 2)
        await parent.hear(messages.RankJoin)
        parent.say(counts_on(1, 0))
        await parent.hear(messages.Prepared)
        parent.say(msgspec.structs.replace(WELCOME, multicast=True))
        await asyncio.sleep(0.3)
        rack.data_plane.deaf = True
        assert await parent.hear(messages.GroupLost, messages.Left) == messages.GroupLost()
        await asyncio.sleep(0.3)
        (host,) = rack.hosts
        host.send(messages.Leave())
        assert await parent.hear(messages.GroupLost, messages.Left) == messages.Left((0,), who="rank 0")


def counts_on(attempt, *ranks):
    return messages.Prepare(attempt, 256, 360, False, ranks)


@in_tree(racks=0)
async def test_a_rack_prepares_once_its_parent_counts_on_its_ranks_and_no_others(tree, root):
    """Else a host that the parent is about to refuse would contribute."""
    async with SpokenParent.with_rack(tree) as (rack, parent):
        host, stray = await rack.join(0, 2), await rack.join(1, 2)
        assert {(await parent.hear(messages.RankJoin)).rank for _ in range(2)} == {0, 1}
        parent.say(counts_on(1, 0))  # its rank 1 is elsewhere; what it says of this one comes later
        parent.say(messages.Refused("JoinError", "Rank 1 is elsewhere.", 1))
        assert await stray.refusal() == "Rank 1 is elsewhere."
        assert (await parent.hear(messages.RankGone, messages.Prepared)) == messages.RankGone(1)
        assert (await parent.hear(messages.RankGone, messages.Prepared)) == messages.Prepared(1)
        (epoch,) = rack.plane.jobs.epochs()
        assert [member.ranks.keys() for member in epoch.members] == [{0}]
        # From now on it has said who contributes.
        late = await rack.join(1, 2)
        assert "is starting (epoch 1) with 2 other hosts: rank 1 is among them" in await late.refusal()
        parent.say(WELCOME)
        assert isinstance(await host.receive(), messages.Welcome)


@in_tree(racks=0)
async def test_what_the_parent_announced_is_void_when_it_is_lost_or_counts_anew(tree, root):
    async with SpokenParent.with_rack(tree) as (rack, parent):
        await rack.join(0, 3), await rack.join(1, 3)
        for _ in range(2):
            await parent.hear(messages.RankJoin)
        parent.say(counts_on(1, 0))
        parent.say(counts_on(2, 0, 1))
        assert await parent.hear(messages.Prepared) == messages.Prepared(2)
        parent.say(counts_on(3, 0))
        await asyncio.sleep(0.05)
        (epoch,) = rack.plane.jobs.epochs()
        assert (epoch.state.value, epoch.announced) == ("forming", counts_on(3, 0))
        parent.writer.close()
        await asyncio.sleep(0.05)
        assert epoch.announced is None


@in_tree(racks=0)
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

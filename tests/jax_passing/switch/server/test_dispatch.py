"""Members speak while a job runs: some messages are answered, some cost them their connection."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_passing.config import RANKS_MAX
from jax_passing.protocol import control_messages as messages
from support.switch.control import scenario
from support.switch.control_trees import in_tree, job, rack_says, spoken
from support.switch.foreign_messages import foreign_messages


@scenario()
async def test_slots_of_another_job_cant_be_queried(switch):
    _, other = await switch.job(job="other")
    hosts, _ = await switch.job()
    hosts[0].send(messages.Query(other.slot_first, 0))
    failed = await hosts[0].receive()
    assert (failed.kind, failed.ranks) == ("HostLostError", (0,))


@scenario()
async def test_counters_are_told_to_who_asks(switch):
    hosts, _ = await switch.job()
    hosts[1].send(messages.CountersQuery())
    assert await hosts[1].receive() == messages.Counters({"added": 7})


@scenario()
async def test_the_longest_failure_can_be_read_by_all(switch):
    hosts, _ = await switch.job()
    hosts[0].send(messages.Fail("HostLostError", "x" * messages.TEXT_MAX))
    failed = await hosts[1].receive()
    assert failed.message.endswith("xxx (Reported by rank 0.)")
    assert len(failed.message) == messages.TEXT_MAX


@in_tree(racks=0)
async def test_a_rack_whose_ranks_are_refused_again_and_again_loses_its_connection(tree, root):
    rack = await root.connect()
    rack.send(messages.RackJoin(messages.PROTOCOL_VERSION, "a", "r", "far:1", 4242))
    rack.send(*[rack_says(5, 5)] * (RANKS_MAX + 1))
    for _ in range(RANKS_MAX):
        assert isinstance(await rack.receive(), messages.Refused)
    assert await rack.receive() is None
    assert root.plane.stats()["messages_malformed"] == 1


@settings(max_examples=60)
@given(st.lists(foreign_messages, max_size=6))
def test_nothing_that_a_rack_says_stops_its_parent(several):
    @in_tree(racks=0)
    async def run(tree, root):
        _, rack = await spoken(root)
        rack.send(*several)
        rack.writer.close()
        await job(root, job="next")
        assert root.is_watched

    run()


BAD_LINES = [
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

    @in_tree(racks=0)
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

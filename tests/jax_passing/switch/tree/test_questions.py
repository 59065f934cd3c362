"""A host hears who is missing in a chunk, from one switch and from all of a tree."""

import pytest

from jax_passing.host.control import stalls
from jax_passing.protocol import control_messages as messages
from jax_passing.switch.data_planes.data_plane import SlotVersion
from jax_passing.switch.tree import questions
from support.switch.control import scenario, until
from support.switch.control_trees import in_tree, job, rack_says


@scenario()
async def test_a_device_whose_slots_nobody_can_look_into(switch):
    hosts, welcome = await switch.job()
    switch.data_plane.held = None
    hosts[0].send(messages.Query(welcome.slot_first, 0))
    told = await hosts[0].receive()
    assert (told.empty, told.missing) == (True, ())
    assert "no way to tell who is missing" in told.trouble


@scenario()
async def test_a_device_that_fails_to_say_what_its_slots_hold(switch):
    hosts, welcome = await switch.job()

    def refuse(slot, version, plane):
        raise RuntimeError("no registers here")

    switch.data_plane.slot_version = refuse
    hosts[0].send(messages.Query(welcome.slot_first, 0), messages.Query())
    told = await hosts[0].receive()
    assert (told.empty, told.missing) == (True, ())
    assert "no way to tell who is missing" in told.trouble
    assert await hosts[0].receive() == messages.SlotState(left=())  # the second question's


@scenario()
async def test_queries_name_the_missing_ranks(switch):
    hosts, welcome = await switch.job(4)
    hosts[2].send(messages.Leave())
    (epoch,) = switch.plane.jobs.epochs()
    await until(lambda: epoch.left == {2})
    hosts[0].send(messages.Query(welcome.slot_first + 3, 1))
    assert await hosts[0].receive() == messages.SlotState(
        left=(2,), empty=False, sequence=5, missing=(1, 3), who="rank 1 (127.0.0.1) and rank 3 (127.0.0.1)"
    )
    hosts[0].send(messages.Query())
    assert await hosts[0].receive() == messages.SlotState(left=(2,))


@scenario()
async def test_who_is_missing_hears_who_waits_for_it(switch):
    hosts, welcome = await switch.job(2, host_name="node")
    switch.data_plane.slot_version = lambda slot, version, plane: held(0b01)
    ask = messages.Query(welcome.slot_first, 0, "train.py:4:2 psum")
    hosts[0].send(ask, ask)  # only one of them is passed on
    for _ in range(2):
        assert (await hosts[0].receive()).missing == (1,)
    assert await hosts[1].receive() == messages.Awaited("rank 0 (node, 127.0.0.1)", "train.py:4:2 psum")
    hosts[1].send(messages.Query(sum="train.py:9:2 psum"))  # it waits for rank 0, which decides the order
    assert await hosts[1].receive() == messages.SlotState(left=(), who="rank 0 (node, 127.0.0.1)")
    assert await hosts[0].receive() == messages.Awaited("rank 1 (node, 127.0.0.1)", "train.py:9:2 psum")
    (epoch,) = switch.plane.jobs.epochs()
    assert epoch.stalled == (5, "train.py:4:2 psum")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Longer than this process, which stands for all switches and hosts, may be stopped."""
    monkeypatch.setattr(questions, "PATIENCE_S", 5.0)


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
    @in_tree()
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


@in_tree(racks=0)
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
    assert questions.PATIENCE_S < stalls.ANSWER_S


@in_tree()
async def test_a_switch_that_doesnt_answer_is_named_with_its_ranks(tree, root, left, right):
    hosts, welcomes = await job(left, right)
    root.data_plane.held = left.data_plane.held = held(0b01)

    right.plane._questions.answer = lambda *_: None
    hosts[0].send(messages.Query(welcomes[0].slot_first, 0), messages.Heartbeat())
    assert await hosts[0].receive() == messages.Heartbeat()  # nobody else waits for it
    state = await hosts[0].receive()
    assert state.missing == (1, 2, 3)
    assert f"The switch at {right.name} doesn't answer." in state.trouble


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

    @in_tree(racks=0)
    async def run(tree, root):
        asking = await asking_rack(root)
        answer = messages.decode_from_parent(await asking.reader.readline())
        assert (answer.id, answer.missing, answer.trouble) == (7, (1,), "The switch at far:1 doesn't answer.")

    run()


def test_questions_of_a_rack_end_when_it_goes(monkeypatch):
    monkeypatch.setattr(questions, "PATIENCE_S", 3600.0)

    @in_tree(racks=0)
    async def run(tree, root):
        asking = await asking_rack(root)
        await until(lambda: "questions" in root.plane.held())
        asking.writer.close()
        await until(lambda: "questions" not in root.plane.held())

    run()

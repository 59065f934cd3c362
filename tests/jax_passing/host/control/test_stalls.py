"""A sum that makes no progress is described. test_session.py has stalls of real sessions."""

import pytest

from jax_passing.host.control import stalls
from jax_passing.protocol.control_messages import Awaited, SlotState
from support.host.stalls import Stall
from support.switch.control import StillOutside


@pytest.mark.parametrize(
    ("state", "order", "sentence", "gone"),
    [
        (None, False, "The switch at b:2 doesn't answer", ()),
        (SlotState(left=(), empty=True, missing=(0, 1, 2)), False, "not even this one: does UDP reach b:3?", ()),
        (SlotState(left=(2,), trouble="No way to tell."), False, "No way to tell.", ()),
        (SlotState(left=(), empty=False, sequence=8, missing=()), False, "from no rank", ()),
        (SlotState(left=(), empty=False, sequence=9, complete=True), False, "does UDP from b:3 reach us?", ()),
        (SlotState(left=(), empty=False, sequence=9, missing=(1, 2)), False, "Missing: ranks 1, 2.", ()),
        (SlotState(left=(), empty=False, sequence=9, missing=(0,)), False, "That is this one: does UDP reach b:3?", ()),
        (SlotState(left=(2,), empty=False, sequence=9, missing=(1, 2)), False, "Of these, rank 2 left", (2,)),
        (SlotState(left=(2,)), True, "rank 0, which decides the order", ()),
        (SlotState(left=(0, 2)), True, "Of these, rank 0 left", (0,)),
    ],
)
def test_explanations(state, order, sentence, gone):
    found = stalls.explain(Stall(waits_for_order=order), state, rank=int(order), switch="b:2", data="b:3")
    assert sentence in found.text
    assert found.gone == gone


def test_rank_0_itself_waits_for_others():
    found = stalls.explain(Stall(waits_for_order=True), SlotState(left=()), rank=0, switch="b:2", data="b:3")
    assert found.text == "It waits for another host, which hasn't come to it."


def reporter(note=lambda text, **facts: None, rank=0):
    asks = {"ask": None, "told": None}  # it isn't asked for that here
    switches = ["a:1", "b:2"]
    return stalls.StallReporter(
        None, rank=rank, epoch=1, switches=switches, data=switches, **asks, programs=str, note=note
    )


def test_the_plane_of_a_stall():
    query = stalls.question(Stall(shard=5), planes=4)
    assert (query.slot, query.version, query.plane) == (3, 1, 1)
    asked = []
    several = stalls.StallReporter(
        StillOutside(),
        rank=0,
        epoch=1,
        switches=["a:1", "b:2"],
        data=["a:1", "a:2", "a:3", "a:4", "b:2", "b:3", "b:4", "b:5"],
        ask=lambda switch, query: asked.append((switch, query.plane)),
        told=lambda note, failure: asked.append(note),
        programs=str,
        note=lambda text, **facts: None,
    )
    several.ask(Stall(shard=5), 5.0)
    several.answer(0, SlotState(left=()))  # another switch
    several.answer(1, SlotState(left=(), empty=False, sequence=9, missing=(0,)))
    assert asked == [(1, 1), "Missing: rank 0. That is this one: does UDP reach b:3?"]


def test_a_stall_of_this_hosts_gpu(caplog):
    state = SlotState(left=(1,), missing=(1,))
    found = stalls.explain(Stall(waits_for_gpu=True), state, rank=0, switch="b:2", data="b:3")
    assert "this host's own GPU" in found.text
    assert (found.missing, found.gone) == ((0,), ())
    reporter().report(Stall(waits_for_gpu=True), 5.0, None)
    assert "step 0; epoch 1). It waits for this host's own GPU" in caplog.text


def test_warnings_get_rarer(caplog):
    warns = reporter()
    for second in range(5, 60):
        warns.report(Stall(), float(second), None)
    assert len(caplog.records) == 4  # at 5, 10, 20 and 40 s
    warns.report(Stall(sequence=10), 5.0, None)
    assert len(caplog.records) == 5


def test_who_is_awaited_is_warned_now_and_then(caplog):
    notes = []
    warns = reporter(lambda text, **facts: notes.append(facts), rank=2)
    for second in range(35):
        warns.awaited(Awaited("rank 0 (node, 10.0.0.1)", "train.py:4:2 psum"), float(second))
    text = "rank 0 (node, 10.0.0.1) waits for rank 2, this host, in train.py:4:2 psum: this host hasn't come to it"
    assert [record.message.startswith(text) for record in caplog.records] == [True, True]
    warns.awaited(Awaited("rank 0 (node, 10.0.0.1)", "train.py:9:2 psum"), 36.0)
    assert len(caplog.records) == 3
    assert notes[0] == {"site_name": "train.py:4:2 psum", "missing": [2]}


def test_stalls_are_noted_with_whom_they_wait_for():
    notes = []
    noting = reporter(lambda text, **facts: notes.append((text, facts)))
    noting.report(Stall(), 5.0, SlotState(left=(), empty=False, sequence=9, missing=(1,), who="rank 1 (node, b)"))
    ((text, facts),) = notes
    assert text == "Missing: rank 1 (node, b)."
    assert (facts["missing"], facts["waited_s"]) == ([1], 5.0)

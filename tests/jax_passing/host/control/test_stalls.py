"""A sum that makes no progress is described. test_session.py has stalls of real sessions."""

import pytest

from jax_passing.host.control import stalls
from jax_passing.protocol.control_messages import SlotState
from support.host.stalls import Stall


@pytest.mark.parametrize(
    ("state", "order", "sentence", "gone"),
    [
        (None, False, "The switch at b:2 doesn't answer", ()),
        (SlotState(left=(), empty=True, missing=(0, 1, 2)), False, "from no rank, not even this one", ()),
        (SlotState(left=(2,), trouble="No way to tell."), False, "No way to tell.", ()),
        (SlotState(left=(), empty=False, sequence=8, missing=()), False, "from no rank", ()),
        (SlotState(left=(), empty=False, sequence=9, complete=True), False, "answers don't arrive", ()),
        (SlotState(left=(), empty=False, sequence=9, missing=(1, 2)), False, "Missing: ranks 1, 2.", ()),
        (SlotState(left=(), empty=False, sequence=9, missing=(0,)), False, "That is this one: does UDP reach", ()),
        (SlotState(left=(2,), empty=False, sequence=9, missing=(1, 2)), False, "Of these, rank 2 left", (2,)),
        (SlotState(left=(2,)), True, "rank 0, which decides the order", ()),
        (SlotState(left=(0, 2)), True, "Of these, rank 0 left", (0,)),
    ],
)
def test_explanations(state, order, sentence, gone):
    text, left = stalls.explain(Stall(waits_for_order=order), state, rank=0, switch="b:2")
    assert sentence in text
    assert left == gone


def test_a_stall_of_this_hosts_gpu(caplog):
    text, left = stalls.explain(Stall(waits_for_gpu=True), SlotState(left=(1,), missing=(1,)), rank=0, switch="b:2")
    assert "this host's own GPU" in text
    assert left == ()
    reporter = stalls.StallReporter(rank=0, epoch=1, switches=["a:1", "b:2"], programs=str)
    reporter.report(Stall(waits_for_gpu=True), 5.0, None)
    assert "step 0; epoch 1). It waits for this host's own GPU" in caplog.text


def test_warnings_get_rarer(caplog):
    reporter = stalls.StallReporter(rank=0, epoch=1, switches=["a:1", "b:2"], programs=str)
    for second in range(5, 60):
        reporter.report(Stall(), float(second), None)
    assert len(caplog.records) == 4  # at 5, 10, 20 and 40 s
    reporter.report(Stall(sequence=10), 5.0, None)
    assert len(caplog.records) == 5

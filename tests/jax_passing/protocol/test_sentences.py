"""Sentences about switches and their jobs are short, and say who, since when and why."""

import pytest

from jax_passing.protocol import sentences
from jax_passing.protocol.sentences import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.96, "10.0 s"), (59.6, "60 s"), (61, "1 min"), (7300, "2 h 1 min"), (200_000, "2 d 7 h")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


RECOVERY = {
    "ago_s": 120.0,
    "job": "train",
    "epoch_before": 7,
    "epoch": 8,
    "stood_s": 0.412,
    "kind": "HostLostError",
    "ranks": [2],
    "culprit": "rank 2 (node7, 10.0.0.4)",
    "why": "Rank 2 closed its connection (world size 4). Then call jax_passing.init again on every host.",
}


def test_recoveries():
    assert sentences.of_recovery(RECOVERY) == (
        "2 min ago: job train, epoch 7, stood for 0.41 s and runs in epoch 8: rank 2 (node7, 10.0.0.4): Rank 2 closed "
        "its connection (world size 4)"
    )
    waits = {**RECOVERY, "epoch": None, "culprit": "", "stood_s": 75.0}
    assert sentences.of_recovery(waits) == (
        "2 min ago: job train, epoch 7, hasn't run again: Rank 2 closed its connection (world size 4)"
    )


def test_what_strangers_wrote_moves_no_cursor():
    assert sentences.readable({"a": ["\x1b[2J", 1, ("\u202e",)]}) == {"a": ["\\x1b[2J", 1, ["\\u202e"]]}


def test_ends_are_told_once():
    ends = [{"ago_s": 1.0, "job": "train", "epoch": epoch, "ran_s": 9.0, "why": "gone", "at": "a"} for epoch in (7, 9)]
    overview = {"ended": ends, "recoveries": [{**RECOVERY, "at": "a"}, {**RECOVERY, "epoch_before": 9, "at": "b"}]}
    assert sentences.ended(overview) == ["1.0 s ago: job train, epoch 9, after 9.0 s: gone"]

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
    "why": "Rank 2 closed its connection.",
}


def test_recoveries():
    assert sentences.of_recovery(RECOVERY) == (
        "2 min ago: job train: it stood for 0.41 s, as epoch 7 failed and epoch 8 followed: rank 2 (node7, 10.0.0.4): "
        "Rank 2 closed its connection."
    )
    waits = {**RECOVERY, "epoch": None, "culprit": "", "stood_s": 75.0}
    assert sentences.of_recovery(waits) == (
        "2 min ago: job train: epoch 7 failed, and it hasn't run again since: Rank 2 closed its connection."
    )


def test_what_strangers_wrote_moves_no_cursor():
    assert sentences.readable({"a": ["\x1b[2J", 1, ("\u202e",)]}) == {"a": ["\\x1b[2J", 1, ["\\u202e"]]}

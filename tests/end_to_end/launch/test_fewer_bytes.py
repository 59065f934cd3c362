"""The examples' ways to send fewer bytes and to wait less: each trains as well, with the bytes that it promises."""

import argparse
import re
from pathlib import Path

import pytest

import fewer_bytes
from support.jobs.cluster import PASSING, Process

EXAMPLES = Path(__file__).parents[3] / "examples"
BESIDE = {
    "PYTHONSAFEPATH": "",  # what the examples import is in their own folder
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "",  # what makes the checks compile fast makes these train slowly
}
FLOAT32_MB = 500 * 29_066 * 4 / 1e6  # of the steps of train_digits.py and its parameters


def trained(example: str, *flags: str) -> Process:
    """Lets two hosts of two devices train. The process's status says whether the example's own checks hold."""
    program = str(EXAMPLES / f"train_{example}.py")
    process = Process([*PASSING, "run", "--hosts", "2", "--devices-per-host", "2", program, *flags], BESIDE)
    try:
        assert process.wait(200) == 0, process.text
    finally:
        process.stop()
    return process


@pytest.mark.parametrize(
    ("flags", "share", "same_bits"),
    [
        ("--wire-dtype int16", 1 / 2, "yes"),
        ("--wire-dtype int8", 1 / 4, "yes"),
        ("--wire-dtype int4", 1 / 8, "yes"),
        ("--powersgd 4", 1 / 3, "yes"),
        ("--pace stale:1", 1, "yes"),
        ("--pace local-sgd:10", 1 / 10, "(yes|no, nor are they promised)"),
        ("--pace diloco:20", 1 / 20, "yes"),
        ("--pace diloco:20:5 --wire-dtype int8", 1 / 80, "yes"),
    ],
)
def test_digits_are_learned_with_the_bytes_that_are_promised(flags: str, share: float, same_bits: str) -> None:
    """The program itself fails below 97 % of the test images, or where bits differ that must be alike."""
    process = trained("digits", *flags.split())
    process.wait_for(rf"same bits +{same_bits}, on 4 devices of 2 hosts", 1)
    assert re.search(r"accuracy .*first after step \d+, [\d.]+ s of training", process.text), process.text
    sent_mb = float(process.wait_for(r"moved +([\d.]+) MB sent", 1)[1])
    assert sent_mb < 1.1 * share * FLOAT32_MB


@pytest.mark.parametrize("flags", ["--wire-dtype int8", "--pace stale:1"])
def test_gpt2_learns(flags: str) -> None:
    text = ["--text", str(EXAMPLES.parent / "LICENSE"), "--steps", "60", "--target", "3.8"]
    process = trained("gpt2", *text, *flags.split())
    process.wait_for(r"held out [\d.]+ is the loss on text not trained on; 3.8: first after step \d+", 1)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--pace sometimes", "'sometimes' is none of synchronous, stale, local-sgd, diloco"),
        ("--pace stale:-1", "'stale:-1' is none of"),
        ("--pace stale:1:2", "'stale:1:2' is none of"),
        ("--pace stale:1 --powersgd 4", "--powersgd goes with no other --pace"),
        ("--pace local-sgd:10 --wire-dtype int8", "--pace local-sgd takes no --wire-dtype"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    flags: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", *flags.split()])
    parser = argparse.ArgumentParser()
    fewer_bytes.add_options(parser, "float32")
    with pytest.raises(SystemExit):
        fewer_bytes.parse(parser)
    assert says in capsys.readouterr().err

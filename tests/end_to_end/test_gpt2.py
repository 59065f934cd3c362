"""examples/train_gpt2.py learns on two hosts as on one host that has their rows, and reports what can be."""

import re
import sys
from pathlib import Path

import pytest

from .conftest import PASSING, Process, finish

PROGRAM = Path(__file__).parents[2] / "examples" / "train_gpt2.py"
STEPS = 30
# Sums of bfloat16 are rounded otherwise than one host's gradients, and Adam widens that: to .001 at most, of losses
# that are .02 to .2 from those of a host alone with its rows, from step 10 on.
BOUND = 0.005


def losses_of(process: Process) -> list[float]:
    return [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", process.text)]


def number(process: Process, pattern: str) -> float:
    return float(process.wait_for(pattern, 1)[1])


@pytest.mark.slow
def test_two_hosts_learn_as_one_and_report() -> None:
    beside = {"PYTHONSAFEPATH": "", "JAX_PLATFORMS": "cpu"}  # models is in the program's own folder
    text = ["--steps", str(STEPS), "--text", str(PROGRAM.parent.parent / "LICENSE")]
    one = Process([sys.executable, str(PROGRAM), "--rows", "16", *text], beside)
    two = Process([*PASSING, "run", "--hosts", "2", str(PROGRAM), "--rows", "8", *text], beside)
    try:
        finish([one, two])
    finally:
        one.stop()
        two.stop()
    assert len(losses_of(one)) == 1 + STEPS // 10
    assert losses_of(two) == pytest.approx(losses_of(one), abs=BOUND)
    assert losses_of(two)[0] == pytest.approx(5.55, abs=0.1)  # ln 256: it knows nothing yet
    assert losses_of(two)[-1] < losses_of(two)[0] - 1
    for process, hosts in ((one, 1), (two, 2)):
        rows = 16 // hosts
        step_s = number(process, r"speed .* tokens/s, ([\d.]+) s a step")
        tokens = number(process, r"speed +(\d+) tokens/s") * step_s
        assert tokens == pytest.approx(hosts * rows * 64, rel=0.1)  # as far as step_s is printed
        assert 0 < number(process, r"MFU +([\d.]+)%") < 100
        assert number(process, r"waiting +(-?[\d.]+)%") < 100
        assert f"of cpu on each of {hosts} hosts" in process.text

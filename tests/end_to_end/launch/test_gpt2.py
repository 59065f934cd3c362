"""examples/train_gpt2.py learns on two hosts as on one host that has their rows, and reports what can be."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.jobs.cluster import PASSING, Cluster, Process, finish, host_settings

PROGRAM = Path(__file__).parents[3] / "examples" / "train_gpt2.py"
BESIDE = {
    "PYTHONSAFEPATH": "",  # models is in the program's own folder
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "",  # what makes the checks compile fast makes this train slowly, and rounds otherwise
}
STEPS = 20
# Sums of bfloat16 are rounded otherwise than one host's gradients, and Adam widens that: to .003 at most, of losses
# that are .03 to .3 from those of a host alone with its rows, from step 10 on. After 20 steps it is no longer bounded.
BOUND = 0.005


def losses_of(process: Process) -> list[float]:
    return [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", process.text)]


def number(process: Process, pattern: str) -> float:
    return float(process.wait_for(pattern, 1)[1])


def test_two_hosts_learn_as_one_and_report() -> None:
    text = ["--steps", str(STEPS), "--text", str(PROGRAM.parent.parent / "LICENSE")]
    one = Process([sys.executable, str(PROGRAM), "--rows", "16", *text], BESIDE)
    two = Process([*PASSING, "run", "--hosts", "2", str(PROGRAM), "--rows", "8", *text], BESIDE)
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


def test_two_hosts_that_shard_learn_the_same_and_keep_a_part_each() -> None:
    """Four devices together keep the parameters and Adam's two moments once, but for padding."""
    text = ["--rows", "4", "--steps", str(STEPS), "--text", str(PROGRAM.parent.parent / "LICENSE")]
    command = [*PASSING, "run", "--hosts", "2", "--devices-per-host", "2", str(PROGRAM), *text]
    plain, shard = Process(command, BESIDE), Process([*command, "--shard"], BESIDE)
    try:
        finish([plain, shard])
    finally:
        plain.stop()
        shard.stop()
    held_out = [number(process, r"held out ([\d.]+)") for process in (plain, shard)]  # losses are rank 0's own here
    assert held_out[1] == pytest.approx(held_out[0], abs=BOUND)
    state = {process: number(process, r"state +([\d.]+) MB on each host") for process in (plain, shard)}
    assert state[plain] / 4 <= state[shard] + 0.005 <= 1.05 * state[plain] / 4 + 0.01  # as far as it is printed


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--rows", "0"], "--rows and --peak-tflops are above 0"),
        (["--peak-tflops", "nan"], "--rows and --peak-tflops are above 0"),
        (["--text", "{short}"], "one to train on and one to validate, and there are 64"),
        (["--shard", "--pace", "stale:1"], "--shard goes with none of --pace"),
        (["--text", "{empty}"], "one to train on and one to validate, and there are 0"),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(flags: list[str], says: str, tmp_path: Path) -> None:
    texts = {"short": tmp_path / "short", "empty": tmp_path / "empty"}
    for path, size in zip(texts.values(), (64, 0), strict=True):
        path.write_bytes(bytes(size))
    command = [sys.executable, str(PROGRAM), *(flag.format(**texts) for flag in flags)]
    ended = subprocess.run(command, env=os.environ | BESIDE, capture_output=True, text=True, timeout=100)
    assert (ended.returncode, says in ended.stderr) == (2, True), ended.stderr


def test_hosts_whose_rows_differ_are_told_so(cluster: Cluster) -> None:
    """Before they train: a mean would be that of no batch, and the loss would fall all the same."""
    command = [sys.executable, str(PROGRAM), "--text", str(PROGRAM.parent.parent / "LICENSE")]
    hosts = [
        Process([*command, "--rows", str(rows)], BESIDE | host_settings(cluster.switch.address, "job", rank, 2))
        for rank, rows in enumerate((8, 4))
    ]
    try:
        for rank, (host, rows) in enumerate(zip(hosts, (8, 4), strict=True)):
            assert host.wait() == 2, host.text
            host.wait_for(rf"--rows of rank 1 isn't that of rank 0; here \(rank {rank}\) it is {rows}\.", 1)
            assert "step 1:" not in host.text
    finally:
        for host in hosts:
            host.stop()


@pytest.mark.parametrize("flag", [None, "size", "rows", "steps", "text"])
def test_the_flag_that_differs_is_named(program: Any, monkeypatch: pytest.MonkeyPatch, flag: str | None) -> None:
    """The second of three hosts has a flag of its own."""
    given = [{name: f"{name} 1" for name in ("size", "rows", "steps", "text")} for _ in range(3)]
    if flag is not None:
        given[1][flag] = "another"
    sessions = [SimpleNamespace(rank=rank, world_size=3) for rank in range(3)]
    parts: list[np.ndarray] = []
    monkeypatch.setattr(program.jax_passing, "process_sum", lambda own: parts.append(own) or own)
    for session, own in zip(sessions, given, strict=True):
        program.difference(session, **own)
    monkeypatch.setattr(program.jax_passing, "process_sum", lambda own: np.add.reduce(parts))
    for rank, (session, own) in enumerate(zip(sessions, given, strict=True)):
        says = flag and f"--{flag} of rank 1 isn't that of rank 0; here (rank {rank}) it is {own[flag]}"
        assert program.difference(session, **own) == says


def test_a_host_that_is_interrupted_ends_the_other_by_name(cluster: Cluster) -> None:
    """Long before the last step, though the other one prints nothing."""
    flags = ["--steps", "100000", "--peak-tflops", "1", "--text", str(PROGRAM.parent.parent / "LICENSE")]
    command = [sys.executable, str(PROGRAM), *flags]
    hosts = [Process(command, BESIDE | host_settings(cluster.switch.address, "job", rank, 2)) for rank in range(2)]
    try:
        hosts[0].wait_for("step 1:", 200)  # it compiles first
        hosts[0].signal(signal.SIGINT)
        for host in hosts:
            assert host.wait() != 0
        hosts[0].wait_for("^KeyboardInterrupt", 1)
        hosts[1].wait_for("HostLostError: Rank 0 left .* it stopped with KeyboardInterrupt", 1)
    finally:
        for host in hosts:
            host.stop()


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    import train_gpt2

    return train_gpt2


def test_every_byte_of_a_text_is_drawn(program: Any, tmp_path: Path) -> None:
    """It isn't read into memory, and may be of any bytes."""
    path = tmp_path / "text"
    path.write_bytes(bytes(range(256)))
    text = program.read_text(path)
    assert isinstance(text, np.memmap)
    drawn = next(program.batches(text, 1000, 64, SimpleNamespace(rank=1, world_size=2)))["tokens"]
    np.testing.assert_array_equal(drawn - drawn[:, :1], np.broadcast_to(np.arange(65), (1000, 65)))
    assert (drawn.min(), drawn.max()) == (0, 255)


@pytest.mark.parametrize(
    ("kind", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
    ],
)
def test_the_peak_of_a_gpu_is_that_of_no_other(program: Any, kind: str, tflops: float | None) -> None:
    flops, source = program.peak_flops_of([SimpleNamespace(device_kind=kind, platform="gpu")] * 2, None)
    if tflops is None:
        assert source == "of a measured product"
    else:
        assert (flops, source) == (2 * tflops * 1e12, f"data sheet of {kind}")

"""Processes of jax.distributed, whose collectives go over a switch on this machine."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jax_passing.for_jax import environment
from support.jax.lockstep import Follower, ask
from support.jobs.cluster import COMPILED_FAST, Switch, free_address, host_settings

PROGRAM = Path(__file__).with_name("host_program.py")
DEADLINE_S = 6.0
LIMIT_S = 100.0


@pytest.fixture(autouse=True)
def no_declared_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_PASSING_AXIS_NAME", raising=False)  # these meshes span the processes


@contextmanager
def started(hosts: int, devices: int = 1, way: str = "early", **more: str) -> Iterator[list[Follower]]:
    switch, coordinator, followers = Switch(), free_address(), []
    try:
        for rank in range(hosts):
            own = COMPILED_FAST | host_settings(switch.address, "for-jax", rank, hosts, devices)
            own |= {"HOST_RANK": str(rank), "HOST_COUNT": str(hosts), "COORDINATOR": coordinator}
            own |= {"JAX_PASSING_DEADLINE_S": str(DEADLINE_S), "JAX_PASSING_WARN_S": "1"}
            own |= environment.variables() if way == "early" else {}
            followers.append(Follower(PROGRAM, [way], own | more))
        yield followers
    finally:
        for follower in followers:
            follower.stop()
        switch.stop()


def tell(followers: list[Follower], do: str, **question: Any) -> list[Any]:
    """Returns what they answer. Each has to have a value."""
    answers = ask(followers, {"do": do, **question}, LIMIT_S)
    for rank, answer in enumerate(answers):
        assert "value" in answer, f"rank {rank}: {answer}\n" + "\n".join(followers[rank].lines)
    return [answer["value"] for answer in answers]


@pytest.mark.parametrize(
    ("hosts", "devices", "way"), [(2, 2, "late"), pytest.param(3, 1, "early", marks=pytest.mark.slow)]
)
def test_sums_of_jit_and_of_psum(hosts: int, devices: int, way: str) -> None:
    with started(hosts, devices, way) as followers:
        assert len({str(value) for value in tell(followers, "jit_sum", arguments={"elements": 1000})}) == 1
        tell(followers, "jit_sum", arguments={"elements": 64, "dtype": "int32"})
        tell(followers, "jit_sum", arguments={"elements": 64, "of": "own"})
        # XLA opened the session; `init` takes it over, unless it says something else.
        (answer, *_) = ask(followers, {"do": "init", "arguments": {"deadline_s": 77.0}}, LIMIT_S)
        assert answer["error"] == "UsageError"
        assert tell(followers, "init") == [[rank, hosts, True] for rank in range(hosts)]
        count = hosts * devices
        total = count * (count - 1) // 2
        assert tell(followers, "beside", arguments={"steps": 3}) == [[11 * total + count - 1] * 3] * hosts
        for rank, follower in enumerate(followers):
            assert not [line for line in follower.lines if "InsideHostWarning" in line], rank
        # A second session can't serve XLA, whose communicators are of the first.
        tell(followers, "shutdown")
        for of in ("all", "all, in another order"):
            answers = ask(followers, {"do": "jit_sum", "arguments": {"elements": 1000, "of": of}}, LIMIT_S)
            assert {answer.get("error") for answer in answers} == {"ClosedError"}, answers


@pytest.mark.slow
def test_collectives_that_differ() -> None:
    with started(2) as followers:
        tell(followers, "jit_sum", arguments={"elements": 16})
        answers = ask(
            followers,
            {"do": "jit_sum", "of 0": {"elements": 32}, "of 1": {"elements": 48}},
            LIMIT_S,
        )
        assert {answer.get("error") for answer in answers} == {"ProgramMismatchError"}, answers
        for answer in answers:
            assert re.search(r"rank 0 called .*32.*rank 1 called .*48", answer["text"]), answer
        assert tell(followers, "error") == ["ProgramMismatchError"] * 2


def test_hosts_with_other_ranks_than_jax_has() -> None:
    with started(2, JAX_PASSING_RANK="0", JAX_PASSING_WORLD_SIZE="1") as followers:
        answers = ask(followers, {"do": "jit_sum", "arguments": {"elements": 16}}, LIMIT_S)
        assert {answer.get("error") for answer in answers} == {"ConfigError"}, answers
    assert all("set neither rank nor world_size" in answer["text"] for answer in answers), answers

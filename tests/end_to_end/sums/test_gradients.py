"""Derivatives through sums on real hosts are those of one process that has all devices, or an error that helps."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from support.jax import lockstep
from support.jax.gradients import CASES
from support.jobs.cluster import COMPILED_FAST, LIMIT_S, PROGRAMS, Switch, free_address, host_settings

DEVICES = 2  # of each host
DEADLINE_S = 20.0
# Each result comes from a few dozen operations on float32, each off by at most 2^-24 of its largest operand; a sum's
# fixed point adds less at 2 and 3 hosts (docs/internals/fixed_point.md). To leave out a host or a device costs a third.
ROUNDINGS = 64
BOUND = ROUNDINGS * 2.0**-24
# An error shows a way on: one of these.
WAYS = r"pvary|pcast|check_vma|inside|mesh|per.host"


class Hosts(NamedTuple):
    """`reference` is the one process."""

    reference: list[lockstep.Follower]
    hosts: list[lockstep.Follower]
    kind: str

    def init(self) -> None:
        lockstep.ask(self.hosts, {"do": "init", "deadline_s": DEADLINE_S}, LIMIT_S)


@pytest.fixture(scope="module", params=["local-2", "local-3", "global-2"])
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    kind, count = request.param.split("-")[0], int(request.param.split("-")[1])
    switch = Switch()
    started = []

    def start(role: str, environment: dict[str, str]) -> lockstep.Follower:
        started.append(lockstep.Follower(PROGRAMS / "transforms/gradients.py", [role], environment))
        return started[-1]

    try:
        alone = {"JAX_NUM_CPU_DEVICES": str(count * DEVICES), "DEVICES_PER_HOST": str(DEVICES), "JAX_PLATFORMS": "cpu"}
        reference = start("reference", alone | COMPILED_FAST)
        coordinator = free_address()
        ranks = []
        for rank in range(count):
            environment = COMPILED_FAST | host_settings(switch.address, request.param, rank, count, DEVICES)
            environment |= {"HOST_RANK": str(rank), "HOST_COUNT": str(count), "COORDINATOR": coordinator}
            ranks.append(start(kind, environment))
        found = Hosts([reference], ranks, kind)
        found.init()
        yield found
    finally:
        for process in started:
            process.stop()
        switch.stop()


def compare(got: list[Any], expected: list[Any], what: str) -> None:
    """Leaf by leaf, against the largest element of all leaves: some gradients are 0 but for rounding."""
    assert [len(leaf) for leaf in got] == [len(leaf) for leaf in expected], what
    largest = max((np.abs(leaf).max(initial=0) for leaf in map(np.array, expected)), default=0.0)
    for number, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=BOUND * largest, err_msg=f"{what}, leaf {number}")


@pytest.mark.parametrize("name", CASES)
def test_as_on_one_mesh_of_all_devices(hosts: Hosts, name: str) -> None:
    case, count = CASES[name], len(hosts.hosts)
    if case.local_only and hosts.kind == "global":
        pytest.skip("vmap and pmap with local devices end at the host")
    raises = None if case.right_on_global and hosts.kind == "global" else case.raises
    question = {"do": "case", "case": name, "devices": count * DEVICES}
    answers = lockstep.ask(hosts.hosts, question, LIMIT_S)
    if any(answer["failed"] for answer in answers):
        hosts.init()
    if raises and any("error" in answer for answer in answers):
        for answer in answers:
            assert answer.get("error") == raises, answer
            assert re.search(WAYS, answer["text"]), answer["text"]
        return
    for rank, answer in enumerate(answers):
        assert "error" not in answer, f"rank {rank}: {answer['error']}: {answer['text']}"
    (reference,) = lockstep.ask(hosts.reference, question, LIMIT_S)
    assert "error" not in reference, reference
    equal, rows = reference["value"]
    for rank, answer in enumerate(answers):
        compare(answer["value"][0], equal, f"rank {rank}")
        own = [np.split(np.array(leaf), count)[rank].tolist() for leaf in rows]
        compare(answer["value"][1], own, f"rank {rank}, rows")
    # Better than announced: then the table should say so.
    assert raises is None, f"{raises} was expected, but the result is right"

"""Trainings that wait less do on real hosts what they do in numpy, with the same bits everywhere and in every run."""

from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import COMPILED_FAST, digest, finish

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster

PROGRAM = "pace/methods.py"


@pytest.mark.smoke
def test_sums_that_take_several_steps(cluster: "Cluster") -> None:
    digest(cluster.run(PROGRAM, "in a chain", "streaming diloco"))


def test_every_method_is_that_of_numpy_twice(cluster: "Cluster") -> None:
    first, second = (digest(cluster.run(PROGRAM)) for _ in range(2))
    assert first == second


def test_every_method_on_three_hosts(cluster: "Cluster") -> None:
    digest(cluster.run(PROGRAM, hosts=3))


@pytest.mark.parametrize("hosts", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_hosts_with_other_numbers_hear_it(cluster: "Cluster", hosts: int) -> None:
    started = cluster.start("pace/differing.py", hosts=hosts, devices=1, env=COMPILED_FAST)
    finish(started)
    for process in started:
        for case in ("staleness", "staleness or none", "local_sgd every", "diloco every", "diloco delay"):
            said = process.wait_for(f"^{case}: (.*)", 1)[1]
            assert said.startswith("ProgramMismatchError: "), process.text
        for number in ("staleness=1", "staleness=2", "every=2", "every=4", "delay=1", "delay=2"):
            assert number in process.text

"""Trainings that wait less do on real hosts what they do in numpy, with the same bits everywhere and in every run."""

from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import digest

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

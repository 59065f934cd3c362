"""Pipelines whose gradients are summed over several hosts."""

from typing import TYPE_CHECKING

import pytest

from .conftest import digest

if TYPE_CHECKING:
    from .conftest import Cluster


@pytest.mark.parametrize(("hosts", "devices"), [(2, 4), (3, 2)])
def test_every_schedule_has_the_gradients_of_all_hosts(cluster: "Cluster", hosts: int, devices: int) -> None:
    digest(cluster.run("pipeline.py", hosts=hosts, devices=devices))  # all have one

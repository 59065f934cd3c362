"""Sums with residuals on several real hosts, through a real switch."""

from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import COMPILED_FAST

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster


@pytest.mark.parametrize(
    ("hosts", "strategy", "wire"),
    [
        (2, "passing", "int4"),
        (2, "passing", "full"),
        (3, "passing", "full"),
        (3, "flat", "full"),
        (3, "passing", "int4"),
        (3, "flat", "int8"),
    ],
)
def test_residuals_are_what_rounding_kept_back(cluster: "Cluster", hosts: int, strategy: str, wire: str) -> None:
    env = {"JAX_PASSING_STRATEGY": strategy, **COMPILED_FAST}
    for process in cluster.run("sums/residuals.py", wire, hosts=hosts, devices=2, env=env):
        assert "residuals right" in process.text

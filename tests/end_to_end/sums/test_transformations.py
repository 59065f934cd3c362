"""Transformations of optax on several real hosts."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import COMPILED_FAST, digest, finish

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster, Process

# With the modules that the programs share with tests of one process.
_PATHS = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
ENVIRONMENT = COMPILED_FAST | {"PYTHONPATH": os.pathsep.join(_PATHS)}


@pytest.mark.smoke
def test_errors_are_the_residuals_and_all_hosts_have_the_same_bits(cluster: "Cluster", tmp_path: Path) -> None:
    digest(cluster.run("optax/compressed.py", str(tmp_path), "int8", env=ENVIRONMENT))


@pytest.mark.slow
def test_three_hosts(cluster: "Cluster", tmp_path: Path) -> None:
    wires = ("full", "int16", "int8", "int4")
    digest(cluster.run("optax/compressed.py", str(tmp_path), *wires, hosts=3, devices=1, env=ENVIRONMENT))


def test_the_hosts_that_are_left_go_on_without_residuals(cluster: "Cluster") -> None:
    started = cluster.start("optax/elastic.py", "1", hosts=3, devices=2, env=ENVIRONMENT)
    finish(started)
    for rank in (0, 2):
        assert "as many as 6 steps are right" in started[rank].text


def state_of(started: "list[Process]") -> str:
    (found,) = {process.wait_for(r"^state (\w+)$", 1)[1] for process in started}
    return found


def test_sharded_optimizers_are_those_of_whole_arrays_and_restored_on_other_hosts(
    cluster: "Cluster", tmp_path: Path
) -> None:
    saved = cluster.run("optax/sharded.py", str(tmp_path), hosts=3, devices=2, env=ENVIRONMENT)
    digest(saved)
    restored = cluster.run("optax/sharded.py", str(tmp_path), "3", hosts=2, devices=1, env=ENVIRONMENT)
    digest(restored)
    assert state_of(saved) == state_of(restored)


def test_the_hosts_that_are_left_deal_the_last_copy_anew(cluster: "Cluster") -> None:
    started = cluster.start("optax/sharded_elastic.py", "1", hosts=3, devices=2, env=ENVIRONMENT)
    finish(started)
    for rank in (0, 2):
        assert "the bits after 9 steps are those of their hosts" in started[rank].text

"""JAX programs that know nothing of us get over a switch what they get over gloo."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.jobs import for_jax

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster


def check(
    cluster: "Cluster", folder: Path, *names: str, hosts: int, devices: int, env: dict[str, str] | None = None
) -> None:
    both = [
        for_jax.results(cluster, folder / label, list(names), way, hosts, devices, env or {})
        for label, way in (("gloo", for_jax.GLOO), ("ours", for_jax.OURS))
    ]
    near, same = for_jax.compare(both[1], both[0])
    print(f"{near} results within their bounds, {same} with the same bits")
    assert near + same > 0


@pytest.mark.smoke
def test_one_mesh(cluster: "Cluster", tmp_path: Path) -> None:
    # An axis of this mesh lies within each host, the other one has groups that the same hosts share.
    names = ("collectives", "shardings", "host_utils")
    check(cluster, tmp_path, *names, hosts=2, devices=2, env={"MESHES": "columns"})


@pytest.mark.parametrize(
    ("name", "hosts", "devices"),
    [("collectives", 2, 1), ("collectives", 3, 2), ("shardings", 3, 2), ("shardings", 4, 1), ("trainings", 2, 2)],
)
def test_every_mesh(cluster: "Cluster", tmp_path: Path, name: str, hosts: int, devices: int) -> None:
    """Three hosts with two devices each have groups to which hosts give different numbers of devices."""
    check(cluster, tmp_path, name, hosts=hosts, devices=devices)


def test_wide_dtypes(cluster: "Cluster", tmp_path: Path) -> None:
    check(cluster, tmp_path, "collectives", hosts=3, devices=1, env={"JAX_ENABLE_X64": "1", "MESHES": "row"})


def test_checkpoints(cluster: "Cluster", tmp_path: Path) -> None:
    given = {}
    for label, way in (("gloo", for_jax.GLOO), ("ours", for_jax.OURS)):
        env = {"CHECKPOINTS": str(tmp_path / f"saved over {label}")}
        given[label] = for_jax.results(cluster, tmp_path / label, ["checkpoint"], way, 2, 2, env)
    near, same = for_jax.compare(given["ours"], given["gloo"])
    assert (near, same > 0) == (0, True)


def test_confidential(cluster: "Cluster", hosts_key: Path, tmp_path: Path) -> None:
    """TLS carries what hosts send each other without the switch."""
    env = {"JAX_PASSING_HOSTS_KEY_FILE": str(hosts_key), "MESHES": "row"}
    check(cluster, tmp_path, "collectives", hosts=3, devices=1, env=env)


def test_utilities_of_three_hosts(cluster: "Cluster", tmp_path: Path) -> None:
    check(cluster, tmp_path, "host_utils", hosts=3, devices=2)

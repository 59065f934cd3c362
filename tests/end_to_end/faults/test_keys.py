"""A switch with a key and the hosts of a job, from the command line to the bits of the sums."""

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import COMPILED_FAST, PASSING, SOME_DTYPES, counters, digest

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster

PROGRAM = "sums/sums.py"


def write_key(file: Path, *flags: str) -> Path:
    file.touch(mode=0o600)
    file.write_text(subprocess.run([*PASSING, "key", *flags], capture_output=True, text=True, check=True).stdout)
    return file


@pytest.fixture
def key_file(tmp_path: Path, cluster: "Cluster") -> Path:
    """The job's; the cluster's switch has the one that it is derived from."""
    of_switch = write_key(tmp_path / "switch.key")
    cluster.switch.stop()
    cluster.switch = cluster.start_switch("127.0.0.1:0", "--key-file", str(of_switch))
    return write_key(tmp_path / "job.key", "--switch-key", str(of_switch), "--job", Path(PROGRAM).name)


@pytest.mark.smoke
def test_sums_with_tags_and_checks_have_the_same_bits(cluster: "Cluster", key_file: Path) -> None:
    env = COMPILED_FAST | {"JAX_PASSING_KEY_FILE": str(key_file), "JAX_PASSING_CHECK_SUMS": "true"}
    secured = digest(cluster.start(PROGRAM, *SOME_DTYPES, env=env))
    counted = counters(cluster.switch)
    assert counted["complete"] > 0
    assert "forged" not in counted
    plain = cluster.start_switch()
    assert (
        digest(cluster.start(PROGRAM, *SOME_DTYPES, env=COMPILED_FAST | {"JAX_PASSING_SWITCH": plain.address}))
        == secured
    )


def test_a_host_without_the_key(cluster: "Cluster", key_file: Path) -> None:
    (host,) = cluster.start(PROGRAM, hosts=1)
    assert host.wait() != 0
    assert (
        f"wants the key of job '{Path(PROGRAM).name}'. Who runs the switch prints it by `jax-passing key" in host.text
    )

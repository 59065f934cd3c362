import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.jobs.cluster import PASSING, Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def hosts_key(tmp_path: Path) -> Path:
    """A new key of confidential sums, in a file."""
    path = tmp_path / "hosts.key"
    path.touch(mode=0o600)
    path.write_text(subprocess.run([*PASSING, "key", "--hosts"], capture_output=True, text=True, check=True).stdout)
    return path

from collections.abc import Iterator

import pytest

from support.jobs.cluster import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        yield cluster
    finally:
        cluster.stop()

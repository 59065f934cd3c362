"""The limit of open files leaves so many connections."""

import resource

import pytest

from jax_passing.errors import ConfigError
from jax_passing.switch.jobs.quotas import CONNECTIONS_MAX
from jax_passing.switch.server import descriptors
from jax_passing.switch.server.descriptors import BESIDE, connections_that_fit

ENOUGH = CONNECTIONS_MAX + BESIDE


@pytest.fixture
def limit(monkeypatch):
    """Sets what this process may open, soft and hard; what it then asks for."""
    asked = []

    def of(soft, hard):
        monkeypatch.setattr(descriptors.resource, "getrlimit", lambda which: (soft, hard))
        monkeypatch.setattr(descriptors.resource, "setrlimit", lambda which, limits: asked.append(limits))
        return asked

    return of


@pytest.mark.parametrize(
    ("soft", "hard", "has_parent", "asked", "connections"),
    [
        (1024, 1 << 20, False, [(ENOUGH, 1 << 20)], CONNECTIONS_MAX),
        (1024, resource.RLIM_INFINITY, False, [(ENOUGH, resource.RLIM_INFINITY)], CONNECTIONS_MAX),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, True, [], CONNECTIONS_MAX),
        (1 << 20, 1 << 20, True, [], CONNECTIONS_MAX),
        (1024, 4096, False, [(4096, 4096)], 4096 - BESIDE),
        (1024, 4096, True, [(4096, 4096)], (4096 - BESIDE) // 4),
        (1024, 1024, False, [], 1024 - BESIDE),
    ],
)
def test_the_limit_is_raised_as_far_as_is_needed_and_allowed(limit, caplog, soft, hard, has_parent, asked, connections):
    caplog.set_level("WARNING", logger="jax_passing.switch")
    seen = limit(soft, hard)
    assert connections_that_fit(has_parent) == connections
    assert seen == asked
    assert ("Raise the limit of open files" in caplog.text) == (connections < CONNECTIONS_MAX)


def test_too_few_are_an_error_that_says_what_to_do(limit):
    limit(256, 512)
    with pytest.raises(ConfigError, match=rf"may open 512 files, too few .*limit of open files to {ENOUGH} \(ulimit"):
        connections_that_fit(has_parent=False)

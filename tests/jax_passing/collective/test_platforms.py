"""On which platforms programs with sums over hosts are lowered, and what a user hears of it."""

import warnings

import jax.numpy as jnp
import pytest

import jax_passing
from jax_passing.collective.runtime import platforms
from jax_passing.errors import ExperimentalWarning
from support.jax.on_mesh import on_mesh

pytestmark = pytest.mark.usefixtures("session")


def lower_for(platform):
    return on_mesh(lambda x: jax_passing.psum(x, "d"), 1).trace(jnp.ones(4)).lower(lowering_platforms=(platform,))


@pytest.mark.parametrize(("platform", "device"), [("cuda", "GPU"), ("tpu", "TPU")])
def test_a_platform_that_has_never_run_it_warns_once(platform, device):
    platforms._warn_of.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):  # whoever makes it an exception doesn't go on by trying again
            with pytest.raises(ExperimentalWarning, match=f"No {device} has ever run"):
                lower_for(platform)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        lower_for(platform)
        lower_for(platform)
    assert [(warning.category, warning.filename) for warning in warned] == [(ExperimentalWarning, __file__)]


def test_a_cpu_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lower_for("cpu")

"""All tests of the package share this. Nothing here imports JAX but fixtures that need it."""

import os

# Before JAX is imported, if it is: eight devices to cut meshes from, and no conversions that a test doesn't mean.
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"

import hypothesis
import pytest

import jax_passing
from support.switch.in_process import JOB

# The same examples in every run, so that what fails fails again. No test is about speed: drawing an example and trying
# it may take as long as a busy machine needs.
hypothesis.settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("same")


AXES = ("d", "m", "i", "j", "b", "v", "batch")  # declared: in a world of one our primitives then carry out the sums


@pytest.fixture(autouse=True)
def _settings(monkeypatch):
    """The name of every job whose test gives none, and the axis that goes on over its hosts."""
    monkeypatch.setenv("JAX_PASSING_JOB", JOB)
    monkeypatch.setenv("JAX_PASSING_AXIS_NAME", "d")


@pytest.fixture
def session():
    """A world of one host, without a switch."""
    with jax_passing.init(world_size=1, rank=0, deadline_s=20, axis_name=AXES) as session:
        yield session


@pytest.fixture
def compiled_fast():
    """Compiles without most optimisations: programs that run once take longer to optimise than to run."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(params=[False, True], ids=["unchecked", "check_vma"])
def check_vma(request):
    return request.param

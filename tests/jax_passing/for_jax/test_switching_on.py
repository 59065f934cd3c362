"""`use_for_jax` and JAX_PASSING_FOR_JAX choose our library, unless something else is chosen."""

import os
import subprocess
import sys

import pytest

from jax_passing import _native
from jax_passing._compat import process
from jax_passing.errors import ConfigError
from jax_passing.for_jax import environment
from jax_passing.for_jax.use_for_jax import use_for_jax

NAMES = ("MPITRAMPOLINE_LIB", "JAX_CPU_COLLECTIVES_IMPLEMENTATION")
OURS = {NAMES[0]: _native.__file__, NAMES[1]: "mpi"}


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    """No variable is set; what a test sets is undone."""
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})
    return os.environ


@pytest.mark.parametrize("found", [{}, OURS, {NAMES[1]: "mpi"}])
def test_our_own_variables_are_no_conflict(found):
    assert environment.conflict(found) is None


@pytest.mark.parametrize("name", NAMES)
def test_a_conflict_names_the_variable(name):
    assert environment.conflict({**OURS, name: "other"}) == f"{name} is 'other', and has to be {OURS[name]!r}"


@pytest.mark.parametrize(("value", "is_on"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_the_variable_switches_it_on(variables, value, is_on):
    variables |= {} if value is None else {"JAX_PASSING_FOR_JAX": value}
    environment.at_start()
    assert {name: variables[name] for name in NAMES if name in variables} == (OURS if is_on else {})


def test_the_variable_leaves_another_choice_alone(variables, capsys):
    variables |= {"JAX_PASSING_FOR_JAX": "1", NAMES[1]: "gloo"}
    environment.at_start()
    assert NAMES[0] not in variables
    assert variables[NAMES[1]] == "gloo"
    assert f"JAX_PASSING_FOR_JAX has no effect: {NAMES[1]} is 'gloo'" in capsys.readouterr().err


def test_whoever_looks_for_jax_first_changes_nothing():
    """transformers asks whether JAX is there. JAX is prepared when it is imported nevertheless, and once."""
    program = """
import importlib.util, sys
from jax_passing.for_jax import environment
environment.at_start()
begun = len(sys.meta_path)
assert importlib.util.find_spec("jax") and importlib.util.find_spec("jax") and "jax" not in sys.modules
import jax
from jax._src.clusters import ClusterEnv
assert importlib.util.find_spec("jax") is jax.__spec__
print([kind.__module__ for kind in ClusterEnv._cluster_types].count("jax_passing._compat.cluster"))
print([type(finder).__name__ for finder in sys.meta_path].count("_AfterJax"))
print("jax_passing.for_jax.use_for_jax" in sys.modules)
"""
    environ = {"PATH": os.environ["PATH"], "JAX_PLATFORMS": "cpu", "JAX_PASSING_FOR_JAX": "1"}
    found = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}{program}"],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert found.stdout.split() == ["1", "0", "True"]


def test_devices_are_checked_once(monkeypatch):
    made, checked = [], []
    monkeypatch.setattr(process.xla_bridge, "backends", lambda: made.append(0))
    monkeypatch.setattr(process.xla_bridge, "backends_are_initialized", lambda: False)

    def check():
        checked.append(0)

    for _ in range(3):
        process.before_devices(check)
    process.xla_bridge.backends()
    assert (made, checked) == ([0], [0])


@pytest.fixture
def without_devices(monkeypatch):
    monkeypatch.setattr(process, "backend_exists", lambda: False)
    monkeypatch.setattr(process, "cpu_collectives", lambda: "gloo")


def test_it_comes_too_late_for_devices(monkeypatch):
    monkeypatch.setattr(process, "backend_exists", lambda: True)
    with pytest.raises(ConfigError, match="after JAX had made its devices"):
        use_for_jax()


def test_another_implementation_is_left_alone(without_devices, monkeypatch):
    monkeypatch.setattr(process, "cpu_collectives", lambda: "megascale")
    with pytest.raises(ConfigError, match="jax_cpu_collectives_implementation is 'megascale'"):
        use_for_jax()


def test_another_library_is_left_alone(without_devices, variables):
    variables |= {NAMES[0]: "/lib/libmpiwrapper.so"}
    with pytest.raises(ConfigError, match=r"MPITRAMPOLINE_LIB is '/lib/libmpiwrapper.so'.*Unset that variable"):
        use_for_jax()


def test_a_jaxlib_that_tells_no_devices_is_refused(without_devices, monkeypatch):
    monkeypatch.setattr(_native, "bind_mpi_late", lambda: None)
    monkeypatch.setattr(_native, "watch_xla", lambda: "its table of symbols was stripped")
    with pytest.raises(ConfigError, match=r"who makes them: its table of symbols was stripped"):
        use_for_jax()


def test_a_jaxlib_that_takes_no_library_is_told(without_devices, monkeypatch):
    monkeypatch.setattr(_native, "bind_mpi_late", lambda: "its table of symbols was stripped")
    with pytest.raises(ConfigError, match=r"its table of symbols was stripped. Call .* before `import jax`"):
        use_for_jax()


def test_devices_that_the_environment_names():
    assert [environment.cpu_devices({"JAX_NUM_CPU_DEVICES": text}) for text in ("4", "", "x")] == [4, 1, 1]
    flags = {"XLA_FLAGS": "--xla_dump_to=x --xla_force_host_platform_device_count=8"}
    assert [environment.cpu_devices(flags | more) for more in ({}, {"JAX_NUM_CPU_DEVICES": "2"})] == [8, 2]
    twice = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_force_host_platform_device_count=2"}
    assert environment.cpu_devices(twice) == 2

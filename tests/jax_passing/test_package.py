"""The package as users see it: its public names, and the errors in a checkout of its sources."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import jax_passing

SOURCES = Path(__file__).parents[2] / "jax_passing"
IMPORT = "from jax_passing import _native; import jax_passing; print(jax_passing.__file__, _native.__file__, sep='\\n')"


@pytest.fixture
def checkout(tmp_path):
    """A copy of the sources without a native module, even if one was built in their folder."""
    shutil.copytree(SOURCES, tmp_path / "jax_passing", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


def test_every_public_name_is_there():
    for name in jax_passing.__all__:
        getattr(jax_passing, name)
    with pytest.raises(AttributeError, match="no attribute 'psam'"):
        _ = jax_passing.psam


def test_dir_lists_the_public_names():
    assert dir(jax_passing) == sorted(jax_passing.__all__)


def test_modules_are_imported_without_the_public_names():
    """The switch and the launcher are in this package, too, and must start without importing JAX."""
    program = (
        "import sys; from jax_passing import config; from jax_passing.switch.server import serve; "
        "print('jax' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    assert ended.stdout == "False\n"


def test_a_star_import_has_the_public_names():
    found = {}
    exec("from jax_passing import *", found)
    assert set(jax_passing.__all__) == found.keys() - {"__builtins__"}


def test_the_version():
    assert jax_passing.__version__ == version("jax-passing")


def test_in_a_checkout_the_installed_native_module_is_found(checkout):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    ended = subprocess.run(
        [sys.executable, "-c", IMPORT],
        cwd=checkout,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    package, native = ended.stdout.split()
    assert Path(package).parent == checkout / "jax_passing"
    assert Path(native).parent != checkout / "jax_passing"


def run_where_nothing_is_installed(checkout, program):
    program = f"import sys; sys.path.insert(0, {str(checkout)!r}); {program}"
    return subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=120)


def test_sources_that_nobody_installed_say_what_to_do(checkout):
    ended = run_where_nothing_is_installed(checkout, IMPORT)
    assert ended.returncode == 1
    assert f"ImportError: jax_passing at {checkout}/jax_passing is its source code" in ended.stderr
    assert "run `pip install .`" in ended.stderr


def test_sources_that_nobody_installed_have_no_version(checkout):
    program = "import jax_passing; print(hasattr(jax_passing, '__version__')); jax_passing.__version__"
    ended = run_where_nothing_is_installed(checkout, program)
    assert (ended.returncode, ended.stdout) == (1, "False\n"), ended.stderr
    assert (
        f"AttributeError: module 'jax_passing' has no attribute '__version__': {checkout}/jax_passing" in ended.stderr
    )
    assert "run `pip install .`" in ended.stderr

"""Rooms include downwards only, beside what import-linter checks. docs/internals/architecture.md draws them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# The folders of xla_ffi: whose headers each may include, beside its own.
INCLUDES = {
    "wire": [],
    "ebpf": [],
    "net": ["wire"],
    "host": ["net", "wire"],
    "switch": ["net", "wire"],
    "cuda": ["host"],
    "ffi": ["cuda", "host", "net", "wire"],
    "mpi": ["ffi", "host"],
    "python": ["ffi", "host", "mpi", "net", "switch", "wire"],
}
# A module may import these from jax_passing itself; all else there are names for users, of rooms further up.
SHARED = {"_compat", "_native", "config", "errors", "http_server", "job_names", "launchers", "settings_parser"}


def includes(source):
    return re.findall(r'^#include "(.+)"', source.read_text(), re.MULTILINE)


def sources(folder):
    found = sorted(path for path in (ROOT / "xla_ffi" / folder).rglob("*") if path.suffix in (".c", ".cc", ".h"))
    assert found
    return found


def test_every_folder_has_directions():
    assert {path.name for path in (ROOT / "xla_ffi").iterdir() if path.is_dir()} == INCLUDES.keys()


@pytest.mark.parametrize("folder", INCLUDES)
def test_headers_come_from_below(folder):
    allowed = {folder, *INCLUDES[folder], "xla"}
    upwards = [
        f"{source.name} includes {header}"
        for source in sources(folder)
        for header in includes(source)
        if "/" in header and header.partition("/")[0] not in allowed
    ]
    assert upwards == []


def assert_no_circle(above):
    """`above`: what each name includes."""
    above = dict(above)
    while lowest := [name for name, below in above.items() if not above.keys() & set(below)]:
        for name in lowest:
            del above[name]
    assert above == {}


def test_folders_form_no_circle():
    assert_no_circle(INCLUDES)


def test_folders_of_the_host_form_no_circle():
    folders = {path.name for path in (ROOT / "xla_ffi/host").iterdir() if path.is_dir()}
    assert_no_circle(
        {
            folder: {Path(header).parent.name for source in sources(f"host/{folder}") for header in includes(source)}
            & (folders - {folder})
            for folder in folders
        }
    )


def test_headers_form_no_circle():
    headers = {str(path.relative_to(ROOT / "xla_ffi")): path for folder in INCLUDES for path in sources(folder)}
    assert_no_circle({name: includes(path) for name, path in headers.items()})


def users_names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name == "jax_passing")
        elif isinstance(node, ast.ImportFrom) and node.module == "jax_passing":
            yield from (each.name for each in node.names if each.name not in SHARED)


def test_no_room_below_the_commands_imports_what_users_import():
    package = ROOT / "jax_passing"
    rooms = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] != "commands"]
    found = {
        str(path.relative_to(ROOT)): names for path in rooms if (names := [*users_names(ast.parse(path.read_text()))])
    }
    assert len(rooms) > 50
    assert found == {}


def test_only_compat_knows_what_of_jax_is_private():
    """By name, or by the path of a file."""
    package = ROOT / "jax_passing"
    found = {
        path.relative_to(package).parts[0] for path in package.rglob("*.py") if re.search(r"\b_src\b", path.read_text())
    }
    assert found == {"_compat"}


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "tests" else parts).removesuffix(".__init__")


def imported_at_once(path, modules):
    """Yields the modules that the file imports before anything in it is called, and the packages that these are in."""
    for node in ast.parse(path.read_text()).body:
        names = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{each.name}" for each in node.names]
            names = [name if name in modules else node.module for name in inner]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[: end + 1]) for end in range(len(parts)))


def test_tests_of_the_control_plane_import_no_jax():
    """They start in a tenth of the time then. import-linter checks the same of the code that they test."""
    modules = {module_of(path): path for folder in ("tests", "jax_passing") for path in (ROOT / folder).rglob("*.py")}
    rooms = ("jax_passing.doctor.test_", "jax_passing.protocol.test_", "jax_passing.switch.", "conformance.test_")
    tests = [name for name, path in modules.items() if name.startswith(rooms) and path.is_relative_to(ROOT / "tests")]
    assert len(tests) > 40
    reached = dict.fromkeys([*tests, "conftest", "conformance.conftest", "jax_passing.conftest"], "")
    pending = list(reached)
    while pending:
        above = pending.pop()
        for name in imported_at_once(modules[above], modules):
            assert name not in ("jax", "jaxlib"), f"{above}, for {reached[above]}"
            if name in modules and name not in reached:
                reached[name] = above
                pending.append(name)

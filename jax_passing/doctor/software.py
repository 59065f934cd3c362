"""Python, JAX and this package: whether they are there, and fit together."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Protocol

from jax_passing.config import PREFIX
from jax_passing.doctor.findings import Finding, bad, good, warning
from jax_passing.protocol.alike import HASH_SEED

PYTHON_OLDEST = (3, 11)
SUM_TIMEOUT_S = 120.0
_OURS = "jax-passing"
# Four devices' ones, and the sum of them by the handlers that jaxlib has to take.
_SUM = """
import jax, jax.numpy as jnp, jax_passing
from jax.sharding import PartitionSpec as P
with jax_passing.init(axis_name="d"):
    mesh = jax.sharding.Mesh(jax.devices("cpu"), ("d",))
    total = jax.jit(jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))
    print(float(total(jnp.ones((4, 3)))[0, 0]))
"""
_SUM_IS = "4.0"


class Installed(Protocol):
    """The packages of a Python environment."""

    def version(self, package: str) -> str | None:
        """None if it isn't installed."""

    def requires(self, package: str) -> Sequence[str]:
        """As its metadata has them: "jaxlib<=0.10.0,>=0.10.0"."""


class Here:
    """The packages of this Python's environment."""

    def version(self, package: str) -> str | None:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    def requires(self, package: str) -> Sequence[str]:
        try:
            return metadata.requires(package) or []
        except metadata.PackageNotFoundError:
            return []


def numbers(version: str) -> tuple[int, ...]:
    """Of a release, to be compared: (0, 10, 0) of "0.10.0.dev3"."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _bounds(requirements: Sequence[str], package: str) -> list[tuple[str, str]]:
    """What is asked of a package without any extra: (">=", "0.10.0") and so on."""
    for requirement in requirements:
        plain, _, condition = requirement.partition(";")
        named = re.match(r"[\w.-]+", plain)
        if named is not None and named[0] == package and "extra" not in condition:
            return re.findall(r"(>=|<=|==|<|>)\s*([\w.]+)", plain)
    return []


def _fits(version: str, bounds: Sequence[tuple[str, str]]) -> bool:
    ours = numbers(version)
    compare: Mapping[str, Callable[[tuple[int, ...]], bool]] = {
        ">=": lambda other: ours >= other,
        "<=": lambda other: ours <= other,
        "==": lambda other: ours == other,
        "<": lambda other: ours < other,
        ">": lambda other: ours > other,
    }
    return all(compare[relation](numbers(other)) for relation, other in bounds)


def _shown(bounds: Sequence[tuple[str, str]]) -> str:
    return " and ".join(relation + version for relation, version in bounds)


def python(version: Sequence[int], implementation: str) -> Finding:
    text = f"{implementation} {'.'.join(map(str, version[:3]))}"
    wanted = ".".join(map(str, PYTHON_OLDEST))
    if tuple(version[:2]) < PYTHON_OLDEST:
        return bad("Python", text, f"Install Python {wanted} or later.")
    if implementation != "cpython":
        return warning("Python", f"{text}: only CPython is tested", "Use CPython.")
    return good("Python", text)


def jax(installed: Installed) -> Finding:
    """Whether jax and jaxlib are there, new enough for us, and fit to each other."""
    check = "JAX"
    versions = {name: installed.version(name) for name in ("jax", "jaxlib")}
    if missing := [name for name, version in versions.items() if version is None]:
        return bad(check, f"{' and '.join(missing)}: not installed", "Install them: pip install jax")
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    of_jax, of_jaxlib = versions["jax"] or "", versions["jaxlib"] or ""
    for name, version in (("jax", of_jax), ("jaxlib", of_jaxlib)):
        bounds = _bounds(installed.requires(_OURS), name)
        if not _fits(version, bounds):
            return bad(check, f"{text}: jax_passing needs {name} {_shown(bounds)}", "Upgrade: pip install -U jax")
    bounds = _bounds(installed.requires("jax"), "jaxlib")
    if not _fits(of_jaxlib, bounds):
        wanted = f"jax {of_jax} needs jaxlib {_shown(bounds)}"
        return bad(check, f"{text}: {wanted}", f"Install them together: pip install jax=={of_jax}")
    if unreleased := [version for version in (of_jax, of_jaxlib) if not re.fullmatch(r"[\d.]+", version)]:
        return warning(check, f"{text}: {unreleased[0]} is no release", "Use a release: only these are tested.")
    return good(check, text)


def handlers(sum_of_one_host: Callable[[], tuple[int, str]]) -> Finding:
    """Whether this jaxlib takes the handlers that were built on the headers of another one."""
    check = "sum on this host"
    code, output = sum_of_one_host()
    last = (output.strip().splitlines() or ["it printed nothing"])[-1]
    if code == 0 and last == _SUM_IS:
        return good(check, "jaxlib takes our handlers, and four devices' sum is right")
    return bad(
        check,
        f"a process that sums over four CPU devices ended with exit code {code}: {last[:300]}",
        "Install jax_passing again (pip install --force-reinstall --no-deps), in the environment that has this jaxlib.",
    )


def sum_of_one_host() -> tuple[int, str]:
    """In a process of its own, without the settings of this one: JAX isn't loaded here."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}
    environment |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"}
    environment |= {PREFIX + "RANK": "0", PREFIX + "WORLD_SIZE": "1"}  # whatever a launcher says
    command = [sys.executable, "-P", "-c", _SUM]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=SUM_TIMEOUT_S, env=environment, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return 124, f"it took more than {SUM_TIMEOUT_S:g} s"
    return ended.returncode, ended.stdout if ended.returncode == 0 else ended.stderr


def hash_seed(environment: Mapping[str, str]) -> Finding:
    seed = environment.get(HASH_SEED, "")
    if seed.isdecimal():
        return good(HASH_SEED, seed)
    return warning(
        HASH_SEED,
        f"{seed or 'not set'}: sums that are alike can't be told apart by their order in a program",
        f"Set {HASH_SEED}=0 on all hosts (docs/identity.md); `jax-passing run` does.",
    )

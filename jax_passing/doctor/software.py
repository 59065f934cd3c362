"""Python, JAX and this package: whether they are there, and fit together."""

import operator
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from typing import NamedTuple

from jax_passing.config import PREFIX
from jax_passing.doctor.findings import Finding, bad, good, warning
from jax_passing.protocol.alike import HASH_SEED

PYTHON_OLDEST = (3, 11)
SUM_TIMEOUT_S = 120.0
_OURS = "jax-passing"
PACKAGES = (_OURS, "jax", "jaxlib")
_RELATIONS = {">=": operator.ge, "<=": operator.le, "==": operator.eq, "<": operator.lt, ">": operator.gt}
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
_RAISED = re.compile(r"^[\w.]+(?:Error|Exception)\b.*", re.MULTILINE)  # JAX writes notes behind what it raises


class Package(NamedTuple):
    """`requirements`: as its metadata has them: "jaxlib<=0.10.0,>=0.10.0"."""

    version: str
    requirements: Sequence[str] = ()


def installed(names: Iterable[str]) -> dict[str, Package]:
    """Returns the packages among `names` that this Python's environment has."""
    found = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = Package(metadata.version(name), metadata.requires(name) or ())
    return found


def numbers(version: str) -> tuple[int, ...]:
    """Returns a release's numbers, to compare: (0, 10, 0) for "0.10.0.dev3"."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _bounds(packages: Mapping[str, Package], asking: str, package: str) -> list[tuple[str, str]]:
    """Returns the bounds that `asking` sets for a package without any extra: (">=", "0.10.0") and so on."""
    for requirement in packages[asking].requirements if asking in packages else ():
        plain, _, condition = requirement.partition(";")
        named = re.match(r"[\w.-]+", plain)
        if named is not None and named[0] == package and "extra" not in condition:
            return re.findall(r"(>=|<=|==|<|>)\s*([\w.]+)", plain)
    return []


def _fits(version: str, bounds: Sequence[tuple[str, str]]) -> bool:
    return all(_RELATIONS[relation](numbers(version), numbers(other)) for relation, other in bounds)


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


def jax(packages: Mapping[str, Package]) -> Finding:
    """Checks that jax and jaxlib are there, new enough for us, and fit each other.

    `packages`: those of PACKAGES that are installed.
    """
    check, names = "JAX", ("jax", "jaxlib")
    if missing := [name for name in names if name not in packages]:
        return bad(check, f"{' and '.join(missing)}: not installed", "Install them: pip install jax")
    versions = {name: packages[name].version for name in names}
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    for name, version in versions.items():
        bounds = _bounds(packages, _OURS, name)
        if not _fits(version, bounds):
            return bad(check, f"{text}: jax_passing needs {name} {_shown(bounds)}", "Upgrade: pip install -U jax")
    bounds = _bounds(packages, "jax", "jaxlib")
    if not _fits(versions["jaxlib"], bounds):
        wanted = f"jax {versions['jax']} needs jaxlib {_shown(bounds)}"
        return bad(check, f"{text}: {wanted}", f"Install them together: pip install jax=={versions['jax']}")
    if unreleased := [version for version in versions.values() if not re.fullmatch(r"[\d.]+", version)]:
        return warning(check, f"{text}: {unreleased[0]} is no release", "Use a release: only these are tested.")
    return good(check, text)


def handlers(sum_of_one_host: Callable[[], tuple[int, str]]) -> Finding:
    """Checks that this jaxlib takes our handlers, which were built on the headers of another one."""
    check = "sum on this host"
    code, output = sum_of_one_host()
    last = [*_RAISED.findall(output)[-1:], *output.strip().splitlines()[-1:], "it printed nothing"][0]
    if code == 0 and last == _SUM_IS:
        return good(check, "jaxlib takes our handlers, and four devices' sum is right")
    return bad(
        check,
        f"a process that sums over four CPU devices ended with exit code {code}: {last[:300]}",
        "If jaxlib refuses the handlers, install jax_passing again (pip install --force-reinstall --no-deps), in the "
        "environment that has this jaxlib. Else look at the variables of JAX and XLA (JAX_..., XLA_FLAGS).",
    )


def sum_of_one_host() -> tuple[int, str]:
    """Sums over four CPU devices in a process of its own, without this one's settings. Returns exit code and output.

    JAX isn't loaded in this process.
    """
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
    except OSError as error:  # there may be no memory or number left for it
        return 126, f"it couldn't be started: {error}"
    return ended.returncode, ended.stdout if ended.returncode == 0 else ended.stderr


def hash_seed(environment: Mapping[str, str]) -> Finding:
    seed = environment.get(HASH_SEED, "")
    if seed.isdecimal():
        return good(HASH_SEED, seed)
    return warning(
        HASH_SEED,
        f"{seed or 'not set'}: sums that are alike can't be told apart by their order in a program",
        f"Set {HASH_SEED}=0 on all hosts (docs/internals/identity.md); `jax-passing run` does.",
    )

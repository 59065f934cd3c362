"""Python, JAX and this package: whether they are there, and fit together."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata

from jax_passing.config import PREFIX
from jax_passing.doctor.findings import Finding, bad, good, warning
from jax_passing.protocol.alike import HASH_SEED

SUM_TIMEOUT_S = 120.0
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


def installed(names: Iterable[str]) -> dict[str, str]:
    """Returns the versions of the packages among `names` that this Python's environment has."""
    found = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def numbers(version: str) -> tuple[int, ...]:
    """Returns a release's numbers, to compare: (0, 10, 0) for "0.10.0.dev3"."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def python(version: Sequence[int], implementation: str) -> Finding:
    """Judges the interpreter. Older versions of Python don't come here: pip installs us for none of them."""
    text = f"{implementation} {'.'.join(map(str, version[:3]))}"
    if implementation != "cpython":
        return warning("Python", f"{text}: only CPython is tested", "Use CPython.")
    return good("Python", text)


def jax(versions: Mapping[str, str]) -> Finding:
    """Checks that jax and jaxlib are there; the sum on this host shows whether they fit. `versions`: theirs."""
    check, names = "JAX", ("jax", "jaxlib")
    if missing := [name for name in names if name not in versions]:
        return bad(check, f"{' and '.join(missing)}: not installed", "Install them: pip install jax")
    text = ", ".join(f"{name} {versions[name]}" for name in names)
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
        "Run `pip check`, which tells whether jax, jaxlib and jax_passing fit each other. If jaxlib refuses the "
        "handlers, install jax_passing again (pip install --force-reinstall --no-deps), in the environment that has "
        "this jaxlib. Else look at the variables of JAX and XLA (JAX_..., XLA_FLAGS).",
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

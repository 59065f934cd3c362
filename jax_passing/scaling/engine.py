"""Finds how long flows take that share resources, by SimGrid's fluid model (docs/reference/scale.md: why SimGrid)."""

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jax_passing.errors import ConfigError, SimulationError

TIMEOUT_S = 600
DEBIAN_PACKAGES = Path("/usr/lib/python3/dist-packages")  # a virtual environment doesn't look here


Resource = tuple[str, Hashable]  # what it is, as users are told, and which one


@dataclass(frozen=True)
class Flow:
    """Bytes that go through some resources at once, at the same rate."""

    size_bytes: int
    route: tuple[Resource, ...]


@dataclass(frozen=True)
class Problem:
    """Flows that begin together. A resource's capacity is in bytes a second; flows share it fairly (max-min)."""

    capacities: Mapping[Resource, float]
    flows: Sequence[Flow]


Part = tuple[tuple[float, ...], tuple[tuple[int, tuple[int, ...]], ...]]
"""Capacities of resources; of each flow the size, and the numbers of the resources on its route."""


def find_simgrid() -> Path:
    """Returns the path of SimGrid's extension module: an installed one, or Debian's, if it is for this Python.

    Raises ConfigError if there is none.
    """
    installed = importlib.util.find_spec("simgrid")
    if installed is not None and installed.origin is not None:
        return Path(installed.origin)
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        # The short ".so" may be for any Python.
        if suffix != ".so" and (module := DEBIAN_PACKAGES / f"simgrid{suffix}").is_file():
            return module
    version = ".".join(map(str, sys.version_info[:2]))
    raise ConfigError(
        f"A simulation needs SimGrid, which isn't installed for Python {version}. On Debian 12 with Python 3.11 run "
        "`apt-get install python3-simgrid`: it is found from virtual environments, too. Elsewhere compile "
        "version 3.32: `pip install simgrid==3.32` (version 4 has other functions). `jax-passing plan` needs none."
    )


def independent_parts(problem: Problem) -> set[Part]:
    """Divides the problem into parts that share no resource; of parts that are alike, one is returned.

    This is how thousands of hosts become few flows: a host whose link nobody else uses is a part, and all such hosts
    are alike. The problem takes as long as its slowest part.
    """
    above = {name: name for name in problem.capacities}

    def root(name: Resource) -> Resource:
        while above[name] != name:
            above[name] = above[above[name]]
            name = above[name]
        return name

    for flow in problem.flows:
        for name in flow.route[1:]:
            above[root(name)] = root(flow.route[0])
    parts: dict[Resource, list[Flow]] = {}
    for flow in problem.flows:
        parts.setdefault(root(flow.route[0]), []).append(flow)
    return {_part(problem.capacities, flows) for flows in parts.values()}


def _part(capacities: Mapping[Resource, float], flows: Sequence[Flow]) -> Part:
    """Numbers resources in the order in which the flows use them, so that parts that are alike are equal."""
    numbers: dict[Resource, int] = {}
    for flow in flows:
        for name in flow.route:
            numbers.setdefault(name, len(numbers))
    routes = tuple((flow.size_bytes, tuple(numbers[name] for name in flow.route)) for flow in flows)
    return tuple(capacities[name] for name in numbers), routes


def durations_s(problems: Sequence[Problem]) -> list[float]:
    """Returns how many seconds each problem takes, until its last flow has ended.

    Raises ConfigError if SimGrid isn't there, SimulationError if it fails.
    """
    parts = [independent_parts(problem) for problem in problems]
    different = sorted(set().union(*parts))
    took_s = dict(zip(different, _run(different), strict=True))
    return [max((took_s[part] for part in own), default=0.0) for own in parts]


def _run(parts: Sequence[Part]) -> list[float]:
    command = [sys.executable, "-I", str(Path(__file__).with_name("simgrid_process.py")), str(find_simgrid())]
    try:
        ended = subprocess.run(command, input=json.dumps(parts), capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise SimulationError(
            f"SimGrid hasn't simulated this within {TIMEOUT_S} s. Ask for fewer or smaller clusters at once."
        ) from error
    if ended.returncode != 0:
        raise SimulationError(
            f"SimGrid ended with status {ended.returncode}, and says:\n{ended.stderr[-2000:]}\nLikely this isn't "
            "version 3.32, which it is made for, or memory ran out. Install 3.32, or try fewer hosts."
        )
    return json.loads(ended.stdout)

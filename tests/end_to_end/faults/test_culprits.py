"""Each fault of benchmarks/faults is made for real: status, metrics and flight records of hosts name the culprit."""

import argparse
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from support.jobs.cluster import LIMIT_S, PASSING
from support.net.namespaces import missing

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path += [str(BENCHMARKS / "faults"), str(BENCHMARKS / "star")]  # its modules import each other so

import faults_cluster  # noqa: E402
import faults_kinds  # noqa: E402
from faults_cluster import Cluster, Machine, Step  # noqa: E402
from faults_kinds import KINDS  # noqa: E402
from star_network import StarNetwork  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing("tc", "unshare") is not None, reason=f"no star: {missing('tc', 'unshare')}"),
]
HOSTS = 4
FULL_S = 2 * LIMIT_S  # for all hosts to be back
METRICS_PORT = 9471
# Long enough to be noticed, as leases are of a second.
SHORTER_S = {"STOPPED_S": 12.0, "CUT_S": 8.0, "SWITCH_SILENT_S": 8.0, "COMPILE_S": 8.0}
_T = TypeVar("_T")


class Chance(random.Random):
    """Remembers whom a fault hit: `chosen`."""

    chosen: Any = None

    def choice(self, seq: Sequence[_T]) -> _T:  # type: ignore[override]
        self.chosen = super().choice(seq)
        return self.chosen  # type: ignore[no-any-return]


class Training:
    """An elastic training on four hosts, with a standby."""

    def __init__(self, star: StarNetwork) -> None:
        options = argparse.Namespace(
            layout="standby",
            keys=False,
            contender="passing",
            world_size_min=2,
            step_ms=60.0,
            mebibytes=0.2,
            steps=10**6,
        )
        self.star, self.cluster = star, Cluster(star, star.folder, HOSTS, options)
        for switch in self.cluster.switches:
            self.cluster.start_switch(switch)
        for host in self.cluster.hosts:
            self.cluster.start_host(host)
        self.until(self.is_full)

    def until(self, condition: Callable[[], object], limit_s: float = FULL_S) -> None:
        end = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < end, {one.name: self.cluster.last_words(one.name) for one in self.cluster.hosts}
            self.cluster.look()
            time.sleep(0.05)

    def lasts(self) -> list[Step]:
        return [host.steps[-1][-1] for host in self.cluster.hosts if host.steps[-1]]

    def is_full(self, since_s: float = 0.0) -> bool:
        """Says whether all hosts have taken a step together after `since_s`."""
        lasts = self.lasts()
        return len(lasts) == HOSTS and all(one.world_size == HOSTS and one.time_s > since_s for one in lasts)

    def inflict(self, kind: str, chance: Chance) -> float:
        """Does what the benchmark does, until all hosts are back. Returns for how many seconds."""
        began_s = time.monotonic()
        for pause_s in KINDS[kind](self.cluster, chance):
            ends_s = time.monotonic() + pause_s
            self.until(lambda ends_s=ends_s: time.monotonic() >= ends_s)
        mended_s = time.monotonic() + 1.0
        self.until(lambda: self.is_full(mended_s))
        return time.monotonic() - began_s

    def on(self, machine: Machine, *command: str) -> str:
        """Runs a command on a machine, and returns what it prints."""
        return subprocess.run(
            self.star.command(machine.place, command), stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False
        ).stdout

    def status(self) -> dict[str, Any]:
        addresses = ",".join(map(self.cluster.address, self.cluster.switches))
        told: dict[str, Any] = json.loads(self.on(self.cluster.hosts[0], *PASSING, "status", addresses, "--json"))
        return told

    def metrics(self) -> str:
        ask = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{METRICS_PORT}/metrics').read().decode())"
        return "".join(self.on(switch, sys.executable, "-c", ask) for switch in self.cluster.switches)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def training(records: Path) -> Iterator[Training]:
    with pytest.MonkeyPatch.context() as patch, StarNetwork(Cluster.places(HOSTS, "standby"), 0.0) as star:
        patch.setenv("JAX_PASSING_SWITCH_METRICS", str(METRICS_PORT))
        patch.setenv("JAX_PASSING_RECORD_FOLDER", str(records))
        for name, seconds in SHORTER_S.items():
            patch.setattr(faults_kinds, name, seconds)
        patch.setattr(faults_cluster, "COMPILE_S", SHORTER_S["COMPILE_S"])
        yield Training(star)


def texts(records: Path, since: float) -> str:
    """Returns what hosts' flight records since then say of failures."""
    found = []
    for file in records.glob("record-*.json"):
        if file.stat().st_mtime >= since:
            events = json.loads(file.read_text())["jax_passing"]["events"]
            found += [event["text"] for event in events if event["kind"] == "failed" and event["at"] >= since]
    return "\n".join(found)


# Each fault ends in an error of this kind, by this culprit, with this part of its reason.
HOST = r"rank \d \({host}, {address}[,)]"
SWITCH = r"the switch at {switch}:7171"
EXPECTED = {
    "kill": ("HostLostError", HOST, "closed its connection"),
    "exception": ("HostLostError", HOST, "RuntimeError"),
    "sigterm": ("HostLostError", HOST, "closed its connection"),
    "exit": ("HostLostError", HOST, "left the job"),
    "stopped": ("HostLostError", HOST, "was silent"),
    "cut": ("HostLostError", HOST, "was silent"),
    "switch-killed": ("SwitchLostError", SWITCH, "lost the switch at {switch}"),
    "switch-stopped": ("SwitchLostError", SWITCH, "lost the switch at {switch}"),
    "switch-cut": ("SwitchLostError", SWITCH, "lost the switch at {switch}"),
    "switch-and-host": ("SwitchLostError", SWITCH + ", and rank {rank}", "lost the switch at {switch}"),
    "other-wire": ("HostLostError", HOST, "closed its connection"),
    "other-program": ("ProgramMismatchError", HOST, "program"),
    "slow-compile": ("HostLostError", HOST, "closed its connection"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_culprit_of_each_fault_is_named(training: Training, records: Path, kind: str) -> None:
    began, chance = time.time(), Chance(kind)
    switch = training.cluster.serving()
    ranks = {host.name: host.steps[-1][-1].rank for host in training.cluster.hosts}
    took_s = training.inflict(kind, chance)
    victim = chance.chosen or training.cluster.hosts[0]
    names = {
        "host": victim.name,
        "address": re.escape(training.star.address(victim.place)),
        "rank": ranks[victim.name],
        "switch": re.escape(training.star.address(switch.place)),
    }
    error, culprit, why = (each.format(**names) for each in EXPECTED[kind])
    seen = training.status()
    recoveries = [one for one in seen["recoveries"] if one["ago_s"] < took_s + 5.0]
    told = [one for one in recoveries if one["kind"] == error and re.search(culprit, one["culprit"])]
    assert any(re.search(why, one["why"]) for one in told), json.dumps(recoveries, indent=1)
    assert all(one["stood_s"] < 60.0 for one in told if one["epoch"] is not None)
    pattern = rf'job_stood_seconds{{error="{error}",'
    metrics = training.metrics()
    assert re.search(pattern, metrics), [line for line in metrics.splitlines() if "job_stood" in line]
    noted = texts(records, began)
    whose = names["switch"] if "switch" in kind else names["address"]
    assert re.search(whose, noted), noted
    if kind == "other-wire":
        refusals = [one["why"] for one in seen["refusals"] if one["ago_s"] < took_s + 5.0]
        assert any("wire_dtype" in each for each in refusals), seen["refusals"]
    print(f"{kind}: {[(one['kind'], one['culprit'], round(one['stood_s'], 2)) for one in told]}")

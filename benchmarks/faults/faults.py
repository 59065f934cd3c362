"""Trains for minutes while hosts and switches fail, and says how much of the training is kept.

    sudo python benchmarks/faults/faults.py --minutes 10 --seed 1 --json faults.json --plot faults.png
    sudo python benchmarks/faults/faults.py --minutes 2 --kinds kill,cut

Each host and each switch is a machine of its own, on a star of network namespaces. `faults_kinds.py` has the kinds of
faults; a seed draws which one comes when, and whom it hits.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from faults_cluster import EXAMPLE, LAYOUTS, Cluster, Epochs, Step, host_command
from faults_kinds import KINDS
from faults_report import Event, Report, draw_plot, schedule_of, show
from rich.console import Console
from star_network import StarNetwork

WIDTH = 110  # of the table, also where the output is a file
LOOK_S = 0.05
START_S = 300.0  # a busy machine imports JAX in all hosts
LOST_S = 120.0  # without a step for so long, a job is lost: beyond all deadlines
FULL_S = 150.0  # the next fault waits so long for all hosts to be there again


class Campaign:
    """One training, its faults, and the time without any before and after them.

    Attributes:
      events: the faults.
      calm: when there were none.
      lost: why jobs were lost.
      ended: names of machines that ended though nobody had ended them.
    """

    def __init__(self, cluster: Cluster, options: argparse.Namespace, console: Console):
        self._cluster, self._options, self._console = cluster, options, console
        self._chance = random.Random(options.seed)
        self.events: list[Event] = []
        self.calm: list[tuple[float, float]] = []
        self.lost: list[str] = []
        self.ended: list[str] = []
        self._best, self._last_s = -1, time.monotonic()
        self._world_size = 0
        self._epochs = Epochs()

    def run(self) -> None:
        cluster, options = self._cluster, self._options
        for switch in cluster.switches:
            cluster.start_switch(switch)
        for host in cluster.hosts:
            cluster.start_host(host)
        self._last_s += START_S
        self._await_all(START_S)
        self._be_calm()
        until = time.monotonic() + options.minutes * 60
        kinds: list[str] = []
        while time.monotonic() < until:
            if not kinds:  # each comes once before one comes again
                kinds = self._chance.sample(options.kinds, len(options.kinds))
            self._inflict(kinds.pop())
        self._be_calm()

    def _be_calm(self) -> None:
        self._wait(3.0)
        began_s = time.monotonic()
        self._wait(self._options.calm_s)
        self.calm.append((began_s, time.monotonic()))

    def _inflict(self, kind: str) -> None:
        wait_s = self._chance.uniform(*self._options.every)
        began_s, lost = time.monotonic(), len(self.lost)
        fault = KINDS[kind](self._cluster, self._chance)
        for pause_s in fault:
            self._wait(pause_s)
        mended_s = time.monotonic()
        self._wait(1.0)  # so that no step of the world before counts
        self._await_all(FULL_S)
        self._wait(began_s + wait_s - time.monotonic())
        event = Event(kind, began_s, mended_s, time.monotonic(), is_lost=len(self.lost) > lost)
        self.events.append(event)
        self._console.print(f"{event.ended_s - self.calm[0][0]:6.0f} s: {kind}, step {self._best}")

    def _await_all(self, within_s: float) -> None:
        until = time.monotonic() + within_s
        while self._world_size < len(self._cluster.hosts) and time.monotonic() < until:
            self._wait(LOOK_S)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            time.sleep(max(0.0, min(LOOK_S, until - now)))
            self._look()

    def _look(self) -> None:
        ended = self._cluster.look()
        self.ended += ended
        for name in ended:
            self._console.print(f"  {name} has ended by itself: {self._cluster.last_words(name)}")
        lasts: list[Step] = sorted(host.steps[-1][-1] for host in self._cluster.hosts if host.steps[-1])
        in_time = [step for step in lasts if not self._epochs.is_late(step)]
        if in_time:
            newest = in_time[-1]
            self._world_size = newest.world_size
            if newest.number < self._best - 1:
                self._lose(f"step {newest.number} comes after step {self._best}")
                return
            if newest.number > self._best:
                self._best, self._last_s = newest.number, newest.time_s
        if time.monotonic() - self._last_s > LOST_S:
            self._lose(f"no step within {LOST_S:.0f} s")

    def _lose(self, why: str) -> None:
        self._console.print(f"  THE JOB IS LOST: {why}")
        self.lost.append(why)
        self._cluster.begin_anew()
        self._epochs = Epochs()
        self._best, self._world_size, self._last_s = -1, 0, time.monotonic() + START_S


def replay(report: Report, folder: Path, options: argparse.Namespace) -> tuple[int, int]:
    """Takes the steps of the last job once more, without faults. Returns how many there are, and how many of them have
    other bits."""
    chain = report.chains[-1]
    logs = folder / "replay-{rank}.json"
    command = [sys.executable, "-P", "-m", "jax_passing", "run", "--hosts", str(options.hosts)]
    command += [*host_command(logs, options)[1:], "--schedule", schedule_of(chain)]
    environment = os.environ | {"FAULTS_EXAMPLES": str(EXAMPLE.parent), "JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "0"}
    environment.pop("PYTHONSAFEPATH", None)
    with (folder / "replay.txt").open("w") as output:
        subprocess.run(command, env=environment, stdout=output, stderr=subprocess.STDOUT, check=True)
    lines = [Step(*json.loads(line)) for path in folder.glob("replay-*.json") for line in path.open()]
    digests = {step.number: step.digest for step in lines if step.rank == 0}
    return len(chain), sum(digests.get(step.number) != step.digest for step in chain)


def _kinds(text: str) -> list[str]:
    kinds = list(KINDS) if text == "all" else text.split(",")
    if unknown := set(kinds) - set(KINDS):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    return kinds


def _range(text: str) -> tuple[float, float]:
    least, _, most = text.partition(",")
    return float(least), float(most)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="in which faults come")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--world-size-min", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", type=_kinds, default="all", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--layout", choices=LAYOUTS, default="standby", help="of switches; tree has two racks")
    parser.add_argument("--contender", choices=("passing", "torchft"), default="passing")
    parser.add_argument("--keys", action="store_true", help="switches and hosts have keys")
    parser.add_argument("--step-ms", type=float, default=90.0)
    parser.add_argument("--mebibytes", type=float, default=1.0, help="of each step's sum")
    parser.add_argument("--every", type=_range, default="20,30", metavar="S,S", help="least and most between faults")
    parser.add_argument("--calm-s", type=float, default=30.0, help="without faults, before and after them")
    parser.add_argument("--no-replay", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for the hosts' notes, and all that is printed")
    options = parser.parse_args()
    if options.contender == "torchft":
        options.layout, options.no_replay = "alone", True
    options.steps = round((options.minutes * 60 + 2 * options.calm_s + START_S) * 1e3 / options.step_ms) * 2
    return options


def main() -> None:
    options, console = _arguments(), Console(width=WIDTH)
    with StarNetwork(Cluster.places(options.hosts, options.layout), 0.0) as star:
        cluster = Cluster(star, star.folder, options.hosts, options)
        campaign = Campaign(cluster, options, console)
        try:
            campaign.run()
        finally:
            if options.keep:
                cluster.keep(options.keep)
        cluster.end()
        report = Report.of(campaign, [host.steps for host in cluster.hosts])
        show(report, console)
        replayed = None if options.no_replay else replay(report, star.folder, options)
    if replayed is not None:
        console.print(f"Replay without faults: {replayed[1]} of {replayed[0]} steps have other bits.")
    if options.json:
        options.json.write_text(json.dumps(report.as_json(replayed, vars(options)), default=str, indent=1))
    if options.plot:
        draw_plot(report, options.plot)
    sys.exit(bool(report.wrong or report.lost or (replayed and replayed[1])))


if __name__ == "__main__":
    main()

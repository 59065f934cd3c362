"""Trains the digits example for a long time while hosts and the switch fail, and watches what each process takes.

    python tests/manual/soak.py --minutes 60 --seed 1

A fault every few seconds, as in fault_campaign.py, but of jobs with keys: hosts other than rank 0 are killed and
stopped, the switch is stopped, and in the first tenth of the time killed as well; so rank 0 and the last switch live
long enough to show a drift. Ends with an error if errors aren't as they must be, parameters differ between hosts, or a
process that lived for at least half of the time grew: its memory by 1 % or more between the second fifth and the last
fifth of its life, or its descriptors.
"""

import argparse
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass, field

from fault_campaign import HOSTS, Campaign, Plan, table

PLAN = Plan("faults/trainer.py", {"digits": {}}, (60.0,), 8.0, tuple(range(1, HOSTS)), has_key=True)
FAULTS = {"host SIGKILL": 4, "host SIGSTOP": 3, "switch SIGSTOP": 2}  # and how often
EARLY_FAULTS = {**FAULTS, "switch SIGKILL": 2}
EARLY = 0.1  # share of the time
DRIFT = 0.01


@dataclass(frozen=True)
class Sample:
    """The resources of a process between two jobs."""

    at_s: float
    memory_kib: int
    descriptors: int
    threads: int


@dataclass
class Life:
    """The growth of a process."""

    name: str
    samples: list[Sample] = field(default_factory=list)

    @property
    def time_s(self) -> float:
        return self.samples[-1].at_s - self.samples[0].at_s

    def fifth(self, number: int) -> list[Sample]:
        """From 0 to 4; its last sample if there is none in it."""
        begin_s = self.samples[0].at_s + number * self.time_s / 5
        return [one for one in self.samples if begin_s <= one.at_s <= begin_s + self.time_s / 5] or self.samples[-1:]

    def memory_kib(self, number: int) -> float:
        return statistics.median(one.memory_kib for one in self.fifth(number))

    @property
    def drift(self) -> float:
        """After its first fifth, in which it warms up."""
        return self.memory_kib(4) / self.memory_kib(1) - 1

    def cells(self) -> tuple[str, ...]:
        warm = [one for number in range(1, 5) for one in self.fifth(number)]
        counts = [[one.descriptors for one in warm], [one.threads for one in warm]]
        memory = [f"{self.memory_kib(number) / 1024:.1f}" for number in (1, 4)]
        ranges = [f"{min(each)} to {max(each)}" for each in counts]
        return (self.name, f"{self.time_s:.0f}", str(len(self.samples)), *memory, f"{self.drift:+.2%}", *ranges)


HEADINGS = ("process", "life (s)", "samples", "MiB, warm", "MiB, end", "drift", "descriptors", "threads")


def sample(pid: int) -> Sample:
    with open(f"/proc/{pid}/status") as status:
        memory_kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    descriptors, threads = len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))
    return Sample(time.monotonic(), memory_kib, descriptors, threads)


def soak(minutes: float, seed: int) -> tuple[Campaign, dict[int, Life]]:
    chance = random.Random(seed)
    lives: dict[int, Life] = {}
    running = Campaign(seed, PLAN)
    began = time.monotonic()
    try:
        while (passed := (time.monotonic() - began) / (60 * minutes)) < 1:
            faults = EARLY_FAULTS if passed < EARLY else FAULTS
            running.run(chance.choices(list(faults), list(faults.values()))[0], "digits")
            named = {running.switch.popen.pid: "switch"}
            named |= {host.popen.pid: f"rank {rank}" for rank, host in enumerate(running.hosts)}
            for pid, name in named.items():
                lives.setdefault(pid, Life(name)).samples.append(sample(pid))
    finally:
        running.stop()
    return running, lives


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    running, lives = soak(arguments.minutes, arguments.seed)
    print(table(running.rows))
    long = [life for life in lives.values() if life.time_s >= 30 * arguments.minutes]
    lines = [HEADINGS, *(life.cells() for life in long)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
    bad = sum(row.wrong + row.unnamed + row.stuck + row.late + row.leaked for row in running.rows.values())
    grown = [
        life for life in long if life.drift >= DRIFT or life.fifth(4)[-1].descriptors > life.fifth(1)[0].descriptors
    ]
    print(f"{len(lives)} processes, seed {arguments.seed}: {bad} not as they must be, {len(grown)} grew")
    sys.exit(1 if bad or grown else 0)


if __name__ == "__main__":
    main()

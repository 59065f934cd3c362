"""Faults of real processes in the middle of sums: who is left raises by name in time, and the next job joins at once.

    python tests/manual/fault_campaign.py --kills 100 --stops 100 --switch-faults 20 --seed 1

Hosts and a switch on this machine. Hosts live on from fault to fault, and a host that was killed is replaced by one
that stands by. The switch has slots for one job only, and each round is another job's: it can't join unless those of
the last one are free. Prints a line for whatever wasn't as it must be, then the matrix of faults.
"""

import argparse
import os
import random
import signal
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from support.jax.lockstep import Follower, NoAnswerError, ask  # noqa: E402
from support.jobs.cluster import PROGRAMS, Switch  # noqa: E402

HOSTS = 3
LEASE_S = 3.0
SHORT_DEADLINE_S, LONG_DEADLINE_S = 2.0, 6.0  # below the lease and beyond it
IN_TIME_S = 1.0  # after what promises the error
HUNG_S = 20.0  # after that
LULL_S = 0.2  # hosts sum for so long before a fault, at most
START_S = 100.0  # a busy machine imports JAX
SLOTS = 1024
QUEUES = 1  # the switch keeps the socket of a job's queue for the next job, and runs one at a time
THREADS_MORE = 4  # of the pools of XLA and of ours, which grow while their workers are busy
LOADS = {"1 KiB": {"elements": 256, "dtype": "int32"}, "4 MiB": {"elements": 1 << 20, "dtype": "float32"}}


@dataclass
class Row:
    """A cell of the matrix: the outcome of one fault under one load."""

    faults: int = 0
    sums: int = 0
    wrong: int = 0
    unnamed: int = 0  # errors that don't name the rank or the switch, or of another kind
    stuck: int = 0  # no error at all
    late: int = 0
    leaked: int = 0  # descriptors, threads, slots, or a process
    errors_s: list[float] = field(default_factory=list)  # from the fault
    joins_s: list[float] = field(default_factory=list)  # of the next job

    def cells(self) -> tuple[str, ...]:
        counts = (self.faults, self.sums, self.wrong, self.unnamed, self.stuck, self.late, self.leaked)
        return (*map(str, counts), _median_and_max(self.errors_s), _median_and_max(self.joins_s))


HEADINGS = ("faults", "sums", "wrong", "unnamed", "stuck", "late", "leaked", "error after (s)", "next join (s)")


def _median_and_max(times_s: list[float]) -> str:
    return f"{statistics.median(times_s):.3f}, {max(times_s):.3f}" if times_s else ""


def _ending(host: Follower, until: float) -> dict[str, Any]:
    """How its sums ended. Raises NoAnswerError."""
    answer = host.answer(until)
    if "value" not in answer:
        raise NoAnswerError(f"it raised {answer}")
    found: dict[str, Any] = answer["value"]
    return found


class Campaign:
    """A switch, hosts, and one that stands by."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._jobs = 0
        self.rows: dict[tuple[str, str], Row] = {}
        self.switch = self._start_switch("127.0.0.1:0")
        self.address = self.switch.address
        self._descriptors = self._count_descriptors() + QUEUES
        self._known: dict[int, tuple[int, int]] = {}  # by process: descriptors and threads after its first job
        self.hosts = [self._start_host() for _ in range(HOSTS)]
        self._spare = self._start_host()

    def _start_switch(self, listen: str) -> Switch:
        slots = ("--slot-total", str(SLOTS), "--slots-per-job", str(SLOTS))
        return Switch(listen, "--lease-s", str(LEASE_S), *slots)

    def _start_host(self) -> Follower:
        return Follower(PROGRAMS / "faults/survivor.py", [], {"JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "0"})

    def run(self, fault: str, load: str) -> None:
        """One round: a job, a fault, the errors. `fault`: "host SIGKILL", "switch SIGSTOP" and so on."""
        row = self.rows.setdefault((fault, load), Row())
        whom, what = fault.split()[:2]
        deadline_s = self._random.choice((SHORT_DEADLINE_S, LONG_DEADLINE_S))
        row.faults += 1
        row.joins_s.append(self._join(deadline_s))
        ask([self._spare], {"do": "stand by"}, START_S)  # so that its start takes no time from what follows
        ask(self.hosts, {"do": "sum", **LOADS[load]}, START_S)
        victim = self._random.randrange(HOSTS) if whom == "host" else None
        process = self.switch.popen if victim is None else self.hosts[victim].popen
        time.sleep(self._random.uniform(0.0, LULL_S))
        fault_s = time.monotonic()
        process.send_signal(signal.Signals[what])
        # A killed host is missed at once, a stopped one at the deadline or the lease, whichever is first.
        promised_s = fault_s + (0.0 if what == "SIGKILL" else min(deadline_s, LEASE_S))
        for rank in range(HOSTS):
            if rank != victim:
                self._check(row, fault, rank, victim, fault_s, promised_s, deadline_s)
        self._mend(row, fault, victim, deadline_s)
        self._check_switch(row, fault)

    def _join(self, deadline_s: float) -> float:
        """A new job. Returns how long the slowest host took."""
        self._jobs += 1
        job = f"job-{self._jobs}"
        for rank, host in enumerate(self.hosts):
            settings = {"switch": self.address, "job": job, "rank": rank, "world_size": HOSTS}
            settings |= {"deadline_s": deadline_s, "warn_s": deadline_s / 2, "join_deadline_s": START_S}
            host.tell({"do": "join", "settings": settings})
        until = time.monotonic() + START_S
        answers = [host.answer(until) for host in self.hosts]
        assert all("value" in answer for answer in answers), answers
        return max(answer["value"] for answer in answers)

    def _check(
        self, row: Row, fault: str, rank: int, victim: int | None, fault_s: float, promised_s: float, deadline_s: float
    ) -> None:
        """Returns what a host that is left over says."""
        host = self.hosts[rank]
        try:
            answer = _ending(host, promised_s + IN_TIME_S + HUNG_S)
        except NoAnswerError as error:
            row.stuck += 1
            print(f"{fault}: rank {rank}: {error}")
            self._replace(rank)
            return
        row.sums += answer["sums"]
        row.wrong += answer["wrong"]
        took_s = answer["at"] - fault_s
        row.errors_s.append(took_s)
        if not self._is_named(answer, fault, victim):
            row.unnamed += 1
            print(f"{fault} of rank {victim}: rank {rank} after {took_s:.2f} s: {answer['error']}: {answer['text']}")
        if took_s > promised_s - fault_s + IN_TIME_S:
            row.late += 1
            print(
                f"{fault} of rank {victim}: rank {rank} only after {took_s:.2f} s of {deadline_s:g}: {answer['error']}"
            )
        self._check_counts(row, fault, host, answer)

    def _is_named(self, answer: dict[str, Any], fault: str, victim: int | None) -> bool:
        match answer["error"]:
            case "HostLostError":
                return victim is not None and answer["ranks"] == [victim]
            case "DeadlineExceededError" if "SIGSTOP" in fault:
                whom = f"Missing: rank {victim} (" if victim is not None else self.address
                return whom in answer["text"]
            case "SwitchLostError":
                return victim is None and self.address in answer["text"]
        return False

    def _check_counts(self, row: Row, fault: str, host: Follower, answer: dict[str, Any]) -> None:
        """Once a session is over, its process holds no more than after the first one."""
        counts = answer["descriptors"], answer["threads"]
        known = self._known.setdefault(host.popen.pid, counts)
        if counts[0] > known[0] or counts[1] > known[1] + THREADS_MORE:
            row.leaked += 1
            print(f"{fault}: a host has {counts} descriptors and threads, after its first job {known}")

    def _mend(self, row: Row, fault: str, victim: int | None, deadline_s: float) -> None:
        """Everybody is there again."""
        if "SIGKILL" in fault:
            if victim is None:
                self.switch.wait()
                self.switch = self._start_switch(self.address)
                self._descriptors = self._count_descriptors() + QUEUES
            else:
                self._replace(victim)
            return
        began_s = time.monotonic()
        if victim is None:
            self.switch.signal(signal.SIGCONT)
        else:  # it finds that the others went on without it
            self.hosts[victim].popen.send_signal(signal.SIGCONT)
            try:
                answer = _ending(self.hosts[victim], began_s + deadline_s + HUNG_S)
            except NoAnswerError as error:
                row.stuck += 1
                print(f"{fault}: rank {victim}, which goes on: {error}")
                self._replace(victim)
                return
            row.wrong += answer["wrong"]
            row.late += answer["at"] - began_s > deadline_s + IN_TIME_S
            self._check_counts(row, fault, self.hosts[victim], answer)

    def _replace(self, rank: int) -> None:
        self.hosts[rank].stop()
        self.hosts[rank], self._spare = self._spare, self._start_host()

    def _count_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.switch.popen.pid}/fd"))

    def _check_switch(self, row: Row, fault: str) -> None:
        """It holds nothing of a job that is over."""
        until = time.monotonic() + 2 * LEASE_S
        while self._count_descriptors() > self._descriptors:
            if time.monotonic() > until:
                row.leaked += 1
                print(f"{fault}: the switch has {self._count_descriptors()} descriptors, expected {self._descriptors}")
                return
            time.sleep(0.02)

    def stop(self) -> None:
        for host in (*self.hosts, self._spare):
            host.stop()
        self.switch.stop()


def campaign(kills: int, stops: int, switch_faults: int, seed: int) -> dict[tuple[str, str], Row]:
    faults = ["host SIGKILL"] * kills + ["host SIGSTOP"] * stops
    faults += ["switch SIGKILL"] * -(-switch_faults // 2) + ["switch SIGSTOP"] * (switch_faults // 2)
    rounds = [(fault, list(LOADS)[number % len(LOADS)]) for number, fault in enumerate(faults)]
    random.Random(seed).shuffle(rounds)
    running = Campaign(seed)
    try:
        for number, (fault, load) in enumerate(rounds):
            if number % 20 == 0:
                print(f"{number} of {len(rounds)} faults", flush=True)
            try:
                running.run(fault, load)
            except AssertionError as error:
                raise AssertionError(f"round {number} of seed {seed}, {fault}, {load}: {error}") from error
    finally:
        running.stop()
    return running.rows


def table(rows: dict[tuple[str, str], Row]) -> str:
    lines = [("fault", "load", *HEADINGS)]
    lines += [(fault, load, *row.cells()) for (fault, load), row in sorted(rows.items())]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="of hosts, by SIGKILL")
    parser.add_argument("--stops", type=int, default=100, help="of hosts, by SIGSTOP")
    parser.add_argument("--switch-faults", type=int, default=20, help="half by SIGKILL, half by SIGSTOP")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began = time.monotonic()
    rows = campaign(arguments.kills, arguments.stops, arguments.switch_faults, arguments.seed)
    print(table(rows))
    bad = sum(row.wrong + row.unnamed + row.stuck + row.late + row.leaked for row in rows.values())
    faults = sum(row.faults for row in rows.values())
    print(f"{faults} faults in {time.monotonic() - began:.0f} s, seed {arguments.seed}: {bad} not as they must be")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()

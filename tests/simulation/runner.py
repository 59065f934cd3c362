"""Runs seeds in processes of their own: a crash of ours, or an endless loop, is a finding like any other."""

import json
import os
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from simulation.drawing import from_seed
from simulation.plan import Plan, decode, encode
from simulation.world import ViolationError

SEED_MAX_S = 60  # of a processor; most take some milliseconds


def what_was_raised(error: Exception) -> str:
    text = "".join(traceback.format_exception(error)[-4:]) if not isinstance(error, ViolationError) else ""
    return f"{type(error).__name__}: {error}\n{text}".strip()


def attempt(question: int | str) -> tuple[str, dict]:
    """Runs a cluster, given as a seed or a plan as text. Returns what is wrong with it, if anything, and counts."""
    from simulation.cluster import Cluster  # loads _simulation: a planted one, perhaps

    cluster = Cluster(from_seed(question) if isinstance(question, int) else decode(question))
    wrong = ""
    try:
        cluster.run()
    except Exception as error:
        wrong = what_was_raised(error)
    packets = cluster.world.packets
    counts = {"packets": packets.packets, "forged": packets.forged, "flipped": packets.flipped}
    counts |= {"sums": packets.sums_right, "sums that failed": packets.sums_failed}
    ends = Counter(f"end: {session.kind}" for session in cluster.sessions())
    return wrong, {**counts, "lines": cluster.world.lines, **ends}


@dataclass
class Outcome:
    """The outcome of many seeds counts what happened and keeps what was wrong."""

    seeds: int = 0
    wrong: dict[int, str] = field(default_factory=dict)  # by seed
    counts: Counter = field(default_factory=Counter)
    seconds: float = 0.0


def run_all(
    seeds: Iterable[int],
    processes: int,
    prepare: Callable[[], None] = lambda: None,
    on_wrong: Callable[[int, str], None] = lambda seed, wrong: None,
    stop_after: int | None = None,
    attempt: Callable[[int], tuple[str, dict]] = attempt,
) -> Outcome:
    """`prepare` is called first in each process. After `stop_after` findings no more is begun."""
    began = time.monotonic()
    rest, outcome = iter(seeds), Outcome()
    workers = [_Worker(prepare, attempt) for _ in range(processes)]
    busy = {}
    while workers or busy:
        for worker in list(workers):
            seed = None if stop_after is not None and len(outcome.wrong) >= stop_after else next(rest, None)
            workers.remove(worker)
            if seed is None:
                worker.end()
            else:
                worker.begin(seed)
                busy[worker.reads] = worker, seed
        for reads in _readable(list(busy)):
            worker, seed = busy.pop(reads)
            wrong, counts = worker.answer()
            outcome.seeds += 1
            outcome.counts.update(counts)
            if wrong:
                outcome.wrong[seed] = wrong
                on_wrong(seed, wrong)
            workers.append(worker if worker.is_alive else _Worker(prepare, attempt))
    outcome.seconds = time.monotonic() - began
    return outcome


def _readable(descriptors):
    return select.select(descriptors, [], [])[0] if descriptors else []


class _Worker:
    """A forked process that attempts one seed, or plan, after the other."""

    def __init__(self, prepare, attempt):
        sys.stdout.flush()
        reads_questions, self._asks = os.pipe()
        self.reads, answers = os.pipe()
        self.is_alive = True
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._asks)
            os.close(self.reads)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # an assertion's text; the finding names the signal
            prepare()
            for line in os.fdopen(reads_questions):
                signal.setitimer(signal.ITIMER_VIRTUAL, SEED_MAX_S)  # ends this process, wherever it is
                question = json.loads(line)
                if question is None:
                    break
                os.write(answers, json.dumps(attempt(question)).encode() + b"\n")
            os._exit(0)
        os.close(reads_questions)
        os.close(answers)
        self._answers = os.fdopen(self.reads)

    def begin(self, question: int | str):
        """A seed, or a plan as text."""
        os.write(self._asks, json.dumps(question).encode() + b"\n")

    def answer(self):
        line = self._answers.readline()
        if line:
            return json.loads(line)
        self.is_alive = False
        self._answers.close()
        os.close(self._asks)
        _, status = os.waitpid(self._pid, 0)
        number = os.waitstatus_to_exitcode(status)
        how = signal.Signals(-number).name if number < 0 else f"exit status {number}"
        return f"the process ended with {how}", {}

    def end(self):
        os.write(self._asks, b"null\n")  # other workers have inherited the pipe: closing it says nothing
        os.close(self._asks)
        self._answers.close()
        os.waitpid(self._pid, 0)


def what_is_wrong(plan: Plan) -> str:
    """Tries a plan in a process of its own."""
    worker = _Worker(lambda: None, attempt)
    worker.begin(encode(plan))
    wrong, _ = worker.answer()
    if worker.is_alive:
        worker.end()
    return wrong

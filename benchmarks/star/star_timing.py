"""Times the sums of a rank, and measures the processor time, memory and sleeps that they take."""

import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from star_program import Program

BESIDE_STARTS_S = 0.02


def memory_kb(field: str) -> int:
    """This process's memory: VmRSS now, VmHWM at its peak."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field))


def sleeps() -> int:
    """Returns how often this process's threads have gone to sleep, to be woken later."""
    field = "voluntary_ctxt_switches:"
    texts = [path.read_text() for path in Path("/proc/self/task").glob("*/status")]
    return sum(int(line.split()[1]) for text in texts for line in text.splitlines() if line.startswith(field))


class Beside:
    """A large sum that is under way while others are timed."""

    def __init__(self, program: Program, x: Any) -> None:
        self._outs: list[Any] = []
        self._start_s = self._end_s = time.monotonic()
        self._thread = threading.Thread(target=self._sum, args=(program, x))
        self._thread.start()
        time.sleep(BESIDE_STARTS_S)

    def _sum(self, program: Program, x: Any) -> None:
        self._outs.append(program.sum_beside(x))
        self._end_s = time.monotonic()

    def result(self) -> tuple[Any, float]:
        """Returns what `sum` does, once it is there, and how long it took."""
        was_over = not self._thread.is_alive()
        self._thread.join()
        if not self._outs:
            raise RuntimeError("the sum beside failed: its thread's traceback says why")
        if was_over:
            raise ValueError("the sum beside was over before the others: ask for fewer --sums, or more MiB --beside")
        return self._outs.pop(), self._end_s - self._start_s


def timed(program: Program, xs: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Sums `xs`, which it empties, one after the other. Returns the results and what it took."""
    xs.reverse()
    outs = []
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak of memory starts anew
    before_kb, before_sleeps = memory_kb("VmRSS"), sleeps()
    cpu_start_s = time.process_time()
    ticks_s = [time.clock_gettime(time.CLOCK_MONOTONIC)]  # the machine's one clock, so the times of all ranks compare
    while xs:
        outs.append(program.sum(xs.pop()))
        ticks_s.append(time.clock_gettime(time.CLOCK_MONOTONIC))
    cpu_s = time.process_time() - cpu_start_s
    return outs, {
        "start_s": ticks_s[0],
        "end_s": ticks_s[-1],
        "times_s": [end - start for start, end in pairwise(ticks_s)],
        "cpu_s": cpu_s,
        "sleeps": sleeps() - before_sleeps,
        "memory_bytes": (memory_kb("VmHWM") - before_kb) * 1024,
    }

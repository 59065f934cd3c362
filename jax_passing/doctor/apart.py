"""Findings of a process of its own: a check that hangs there can be given up, and a crash ends nothing else."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict

from jax_passing.doctor.findings import Finding, State

TIMEOUT_S = 120.0  # a driver that nobody else uses takes seconds to begin, for each of its devices


def findings(program: str, argument: str, trouble: Callable[[str], Finding]) -> Iterator[Finding]:
    """Runs `program` (Python, which finds `argument` in sys.argv[1]) and yields the findings that it tells.

    Last comes `trouble`, given what went wrong with the process, if anything did.
    """
    # Files, as a pipe would stay open for as long as a process that can't be killed.
    with tempfile.TemporaryFile("w+") as told, tempfile.TemporaryFile("w+", errors="replace") as printed:
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", program, argument, str(told.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                pass_fds=[told.fileno()],
            )
        except OSError as error:
            yield trouble(f"couldn't be started: {error}")
            return
        try:
            code: int | None = child.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            child.kill()  # nobody waits for it to end: inside of the kernel it doesn't
        told.seek(0)
        printed.seek(0)
        lines, last = told.readlines(), (printed.read().strip().splitlines() or ["it printed nothing"])[-1]
    for line in lines:
        found = json.loads(line)
        yield Finding(**(found | {"state": State(found["state"])}))
    if code is None:
        yield trouble(f"didn't end within {TIMEOUT_S:g} s")
    elif code < 0:
        yield trouble(f"was ended by {signal.Signals(-code).name}")
    elif code > 0 or not lines:
        yield trouble(f"ended with exit code {code}: {last[:300]}")


def tell(found: Iterable[Finding]) -> None:
    """Tells the parent process of each finding as soon as it is known. `program` calls it."""
    with os.fdopen(int(sys.argv[2]), "w") as told:
        for finding in found:
            told.write(json.dumps(asdict(finding)) + "\n")
            told.flush()

"""`jax-passing run --hosts a,b` starts this on each host, over ssh: one rank, which ends when the connection does.

The first line of its standard input says what to run. After that nothing comes but the end, by which it learns that the
launcher is gone: ssh sends no signals, and settings in a command line could be read by everybody on the host.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from jax_passing.for_jax.environment import THREADS, threads_needed

TERMINATE_S = 5.0  # between SIGINT and SIGKILL
FAILED = 254  # the exit code if nothing could be started; 255 is ssh's own


def order(arguments: Sequence[str], environment: Mapping[str, str], folder: str) -> bytes:
    """Writes the line that says what to run: Python with these arguments, in this folder, with these variables beside
    the host's."""
    return json.dumps({"arguments": arguments, "environment": environment, "folder": folder}).encode() + b"\n"


def of_rank(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a rank on this machine: those that it has, and these. XLA has enough threads by them."""
    threads = max(os.cpu_count() or 1, threads_needed(int(environment["JAX_NUM_CPU_DEVICES"])))
    return {THREADS: str(threads), **os.environ, **environment}


def main() -> int:
    # Unbuffered: a thread that holds the lock of a buffer can't be left behind when the interpreter ends.
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            return FAILED  # the launcher is gone
        line += byte
    wanted = json.loads(line)
    try:
        child = subprocess.Popen(
            [sys.executable, *wanted["arguments"]],
            cwd=wanted["folder"],
            env=of_rank(wanted["environment"]),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        print(f"Can't start the rank: {error}", file=sys.stderr)
        return FAILED
    threading.Thread(target=_end_with_input, args=(child.pid,), daemon=True).start()
    code = child.wait()
    _signal(child.pid, signal.SIGKILL)  # processes that the script has left behind
    return code if code >= 0 else 128 - code


def _end_with_input(group: int) -> None:
    while os.read(0, 4096):
        pass
    _signal(group, signal.SIGINT)  # SIGTERM would end the rank before its session can tell the others
    time.sleep(TERMINATE_S)
    _signal(group, signal.SIGKILL)


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main())

"""Runs of `jax-passing run` as processes."""

import os
import re
import subprocess
import sys

# -P: the installed package, whatever folder the tests run in.
RUN = [sys.executable, "-P", "-m", "jax_passing", "run"]
# Most of these need no switch: an address that nobody asks.
NO_SWITCH = ["--switch", "127.0.0.1:9"]


def launch(*arguments, **environment):
    return subprocess.run(
        [*RUN, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


FOREVER = """
import subprocess
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])  # as a data loader has
print("pids", os.getpid(), worker.pid)
time.sleep(100)
"""


def start_forever(script, *arguments):
    launcher = subprocess.Popen([*RUN, *arguments, script(FOREVER)], stdout=subprocess.PIPE, text=True)
    pids = []
    while len(pids) < 4:
        line = launcher.stdout.readline()
        assert line, "the launcher ended"
        if "pids" in line:
            pids += [int(pid) for pid in line.split()[-2:]]
    return launcher, pids


def screen(text):
    """Returns what a terminal shows, where later text overwrites earlier."""
    shown = []
    for line in text.split("\n"):
        last = re.split(r"\r\x1b\[2K", line)[-1]
        shown.append(re.sub(r"\x1b\[[0-9;]*m", "", last))
    return shown

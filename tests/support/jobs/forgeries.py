"""Forged packets beside the sums of real hosts. They change nothing, and would if the switch believed them."""

import re
import time
from collections.abc import Sequence

from support.jobs.cluster import LIMIT_S, Process, counters
from support.switch.forge import Forger

FORGED = 100  # packets at least
REFUSED = ("malformed", "foreign_job", "foreign_epoch", "foreign_worker", "foreign_source")


def check(switch: Process, hosts: Sequence[Process], slots: int, near: str, elsewhere: str) -> None:
    """`hosts` run steps.py, in a job of `slots`. `near` is the namespace of one of them, `elsewhere` that of a machine
    that has nothing to do with the job."""
    for host in hosts:
        host.wait_for("^step 0$")
    with Forger(near, elsewhere, slots, len(hosts)) as forger:
        until = time.monotonic() + LIMIT_S
        while forger.sent < FORGED:
            assert time.monotonic() < until, f"{forger.sent} packets were forged"
            time.sleep(0.01)
        for host in hosts:
            steps = re.findall(r"^step (\d+)$", host.text, re.M)
            host.wait_for(f"^step {int(steps[-1]) + 100}$", 600)  # wrong sums end it
            assert host.popen.poll() is None, host.text
    with Forger(near, None, slots, len(hosts)):  # in its name: now nothing is wrong with every fifth packet
        for host in hosts:
            assert host.wait() != 0, host.text
    counted = counters(switch)
    assert min(counted.get(verdict, 0) for verdict in REFUSED) >= FORGED // 10, counted

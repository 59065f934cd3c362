"""Forged packets beside the sums of real hosts. They change nothing, and would if the switch believed them."""

from collections.abc import Sequence

from forge import Forger

from .conftest import Process, counters

REFUSED = ("malformed", "foreign_job", "foreign_epoch", "foreign_worker", "foreign_source")


def check(switch: Process, hosts: Sequence[Process], slots: int, near: str, elsewhere: str) -> None:
    """`hosts` run steps.py, in a job of `slots`. `near` is the namespace of one of them, `elsewhere` that of a machine
    that has nothing to do with the job."""
    for host in hosts:
        host.wait_for("^step 0$")
    with Forger(near, elsewhere, slots, len(hosts)):
        for host in hosts:
            host.wait_for("^step 100$", 200)  # wrong sums end it
            assert host.popen.poll() is None, host.text
    with Forger(near, None, slots, len(hosts)):  # in its name: now nothing is wrong with every fifth packet
        for host in hosts:
            assert host.wait() != 0, host.text
    counted = counters(switch)
    assert min(counted.get(verdict, 0) for verdict in REFUSED) > 0, counted

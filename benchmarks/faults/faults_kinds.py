"""The kinds of faults of `faults.py`. Each does its harm, and yields how many seconds pass until it does what is next.

Whatever dies is started again after `RESTART_S`, by the cluster.
"""

import random
import signal
from collections.abc import Callable, Iterator

from faults_cluster import COMPILE_S, RESTART_S, Cluster, draw

STOPPED_S = 45.0
CUT_S = 15.0
SWITCH_SILENT_S = 15.0
WRONG_S = 30.0  # a host of another kind tries to join for so long at most
AGAIN_S = 6.0  # and for so long after it was refused once: it is started again

Fault = Iterator[float]


def _killed(number: int) -> Callable[[Cluster, random.Random], Fault]:
    def fault(cluster: Cluster, chance: random.Random) -> Fault:
        draw(cluster.hosts, chance).signal(number)
        yield RESTART_S

    return fault


def _stopped(cluster: Cluster, chance: random.Random) -> Fault:
    host = draw(cluster.hosts, chance)
    host.signal(signal.SIGSTOP)
    yield STOPPED_S
    host.signal(signal.SIGCONT)


def _cut(cluster: Cluster, chance: random.Random) -> Fault:
    host = draw(cluster.hosts, chance)
    cluster.cut(host)
    yield CUT_S
    cluster.cut(host, False)


def _switch_killed(cluster: Cluster, chance: random.Random) -> Fault:
    cluster.serving().signal(signal.SIGKILL)
    yield RESTART_S


def _switch_stopped(cluster: Cluster, chance: random.Random) -> Fault:
    switch = cluster.serving()
    switch.signal(signal.SIGSTOP)
    yield SWITCH_SILENT_S
    switch.signal(signal.SIGCONT)


def _switch_cut(cluster: Cluster, chance: random.Random) -> Fault:
    switch = cluster.serving()
    cluster.cut(switch)
    yield SWITCH_SILENT_S
    cluster.cut(switch, False)


def _switch_and_host(cluster: Cluster, chance: random.Random) -> Fault:
    cluster.serving().signal(signal.SIGKILL)
    draw(cluster.hosts, chance).signal(signal.SIGKILL)
    yield RESTART_S


def _another(variant: str) -> Callable[[Cluster, random.Random], Fault]:
    """A host is killed, and what is started in its place differs. Later the right one comes."""

    def fault(cluster: Cluster, chance: random.Random) -> Fault:
        host = draw(cluster.hosts, chance)
        host.variant, refusals = variant, host.ended_by_itself
        host.signal(signal.SIGKILL)
        yield RESTART_S
        for _ in range(round(WRONG_S)):
            if host.ended_by_itself == refusals:
                yield 1.0
        yield AGAIN_S
        host.variant = ""
        host.signal(signal.SIGKILL)
        yield RESTART_S

    return fault


def _slow(cluster: Cluster, chance: random.Random) -> Fault:
    host = draw(cluster.hosts, chance)
    host.variant = "slow"
    host.signal(signal.SIGKILL)
    yield RESTART_S + COMPILE_S
    host.variant = ""


KINDS: dict[str, Callable[[Cluster, random.Random], Fault]] = {
    "kill": _killed(signal.SIGKILL),
    "exception": _killed(signal.SIGUSR1),
    "sigterm": _killed(signal.SIGTERM),
    "exit": _killed(signal.SIGUSR2),
    "stopped": _stopped,
    "cut": _cut,
    "switch-killed": _switch_killed,
    "switch-stopped": _switch_stopped,
    "switch-cut": _switch_cut,
    "switch-and-host": _switch_and_host,
    "other-wire": _another("wire"),
    "other-program": _another("program"),
    "slow-compile": _slow,
}

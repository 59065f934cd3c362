"""Faults of multicast are found."""

import socket
from contextlib import closing
from dataclasses import replace

import pytest

from jax_passing.conformance.live import suite
from jax_passing.protocol.packet import decode
from jax_passing.switch.jobs import group_probe
from support.switch.live_suite import failures, only
from support.switch.model_switch import ModelDataPlane, ModelSwitch

ONCE = "a result goes to the group, once"
GROUP = "44 probes, then results come to the group, from the switch's data address, with a TTL of 1"
LOST = "a rank says that it no longer hears the group: results come to each worker"
NOT_HEARD = "a rank hasn't heard all probes: after 5 bursts results come to each worker"


def faults_of_groups(monkeypatch, *names, fault=lambda verdict, to, packet: (to, packet)):
    only(monkeypatch, *names)
    with closing(ModelSwitch(fault=fault, multicast=True)) as switch:
        return failures(switch.address)[0]


def goes_to_a_group(to):
    return to and to[0][0].startswith("239.")


GROUP_FAULTS = {
    "a result twice": ("complete", lambda to, out: (to * 2, out), ONCE, "doesn't expect"),
    "a lane": ("complete", lambda to, out: (to, out[:-1] + b"\x63"), ONCE, "lane 0: "),
    "a probe is missing": (
        "probe",
        lambda to, out: (to, out) if decode(out).slot != 17 else ((), out),
        GROUP,
        "43 of its 44 probes came here",
    ),
    "probes twice": ("probe", lambda to, out: (to * 2, out), NOT_HEARD, " times, not 5 times"),
    "a full last probe": (
        "probe",
        lambda to, out: (to, replace(decode(out), lanes=(0, 0)).encode()),
        GROUP,
        "the last probe of a burst has 2 lanes",
    ),
    "probes that aren't full": (
        "probe",
        lambda to, out: (to, replace(packet := decode(out), lanes=packet.lanes[:359]).encode()),
        NOT_HEARD,
        "all probes but the last have 360 lanes, as full packets",
    ),
    "probes without the nonce": (
        "probe",
        lambda to, out: (to, replace(decode(out), sequence=0).encode()),
        GROUP,
        "those of a probe, as offered",
    ),
}


@pytest.mark.parametrize("name", GROUP_FAULTS)
def test_faults_of_multicast_are_found(monkeypatch, name):
    verdict, change, case, text = GROUP_FAULTS[name]

    def fault(what, to, out):
        applies = what == verdict and goes_to_a_group(to) and (what == "probe" or decode(out).sequence > 8)
        return change(to, out) if applies else (to, out)

    assert text in faults_of_groups(monkeypatch, case, fault=fault)[case]


def test_a_burst_of_probes_too_many_is_found(monkeypatch):
    monkeypatch.setattr(group_probe, "ROUNDS", 6)
    assert "probes came 6 times, not 5 times" in faults_of_groups(monkeypatch, NOT_HEARD)[NOT_HEARD]


def test_a_switch_that_multicasts_right_passes(monkeypatch):
    assert faults_of_groups(monkeypatch, "multicast", suite.SILENCE) == {}


def test_results_that_also_come_to_each_worker_are_found(monkeypatch):
    workers = set()

    def fault(what, to, out):
        workers.update(to if what == "resend" else ())
        also = tuple(workers) if what == "complete" and goes_to_a_group(to) and decode(out).sequence > 8 else ()
        return tuple(to) + also, out

    assert "got a packet that it doesn't expect" in faults_of_groups(monkeypatch, ONCE, fault=fault)[ONCE]


def test_results_to_a_group_that_a_rank_has_lost_are_found(monkeypatch):
    monkeypatch.setattr(ModelDataPlane, "stop_multicast", lambda self, job: None)
    assert "to the group came result: " in faults_of_groups(monkeypatch, LOST)[LOST]


def test_a_ttl_that_passes_routers_is_found(monkeypatch):
    group = ModelDataPlane.group

    def far(switch, job, own_address):
        switch._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 2)
        return group(switch, job, own_address)

    monkeypatch.setattr(ModelDataPlane, "group", far)
    assert "a packet with a TTL of 2" in faults_of_groups(monkeypatch, GROUP)[GROUP]


def test_one_group_for_all_jobs_is_found(monkeypatch):
    group = ModelDataPlane.group
    monkeypatch.setattr(ModelDataPlane, "group", lambda self, job, own_address: group(self, 1, own_address))
    failed = faults_of_groups(monkeypatch, "a group is offered")
    assert any("two jobs are offered the same one" in text for text in failed.values())

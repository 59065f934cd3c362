"""The program for Tofino follows the protocol, as far as that can be said without one: its text, interpreted."""

import shutil

import pytest
import tna_model

from jax_passing.conformance import run
from jax_passing.conformance.model import Job, Parent
from jax_passing.protocol.packet import EVERY_WORKER, RESULT, Packet, decode

pytestmark = pytest.mark.skipif(shutil.which("cpp") is None, reason="no cpp, the C preprocessor")


@pytest.fixture(params=[1, 2], ids=["tofino", "tofino2"])
def device(request):
    return tna_model.TofinoDevice(request.param)


CASES = run.cases(tna_model.TofinoDevice.limits, seed=0, exchanges=10)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.section}: {case.description}")
def test_case(device, case):
    outcome = run.outcome(device, case)
    if outcome.not_applicable:
        pytest.skip(outcome.not_applicable)
    assert not outcome.failure


def test_a_slot_that_goes_on_between_two_passes_is_not_read():
    switch = tna_model.Tofino(1)
    addresses = {"A0": ("10.0.1.1", 1024), "A1": ("10.0.1.2", 1024)}
    switch.add_job(Job(3, 11, 8, 4, tuple(addresses)), dict(addresses))

    def send(worker, sequence):
        packet = Packet(job=3, epoch=11, worker=worker, slot=9, sequence=sequence, lanes=(sequence,) * tna_model.LANES)
        verdict, sent = switch.on_packet(packet.encode(), addresses[f"A{worker}"])
        assert not sent
        return verdict

    switch.slow = True
    assert [send(0, 7), send(1, 7)] == ["added", "complete"]
    assert [(to, decode(out).lanes) for to, out in switch.pass_on()] == [("A0", (14,) * 64), ("A1", (14,) * 64)]
    assert [send(0, 7), send(1, 8)] == ["resend", "added"]  # by protocol worker 1 has the result of 7, worker 0 lost it
    assert switch.pass_on() == []
    assert send(0, 8) == "complete"
    assert [(to, decode(out).sequence) for to, out in switch.pass_on()] == [("A0", 8), ("A1", 8)]


def test_a_result_is_not_for_what_another_epoch_has_left():
    switch = tna_model.Tofino(1)
    addresses = {"A0": ("10.0.1.1", 1024), "P": ("10.0.1.2", 1024)}
    fields = {"slot": 9, "sequence": 7, "lanes": (1,) * tna_model.LANES}
    result = {**fields, "type": RESULT, "job": 4, "worker": EVERY_WORKER, "slot": 33}

    def verdicts(epoch):
        switch.remove_jobs()
        switch.add_job(Job(3, epoch, 8, 4, ("A0",), Parent(4, epoch + 100, 32, 5, "P")), dict(addresses))
        from_parent = Packet(**result, epoch=epoch + 100).encode()
        first = switch.on_packet(from_parent, addresses["P"])
        sent = switch.on_packet(Packet(**fields, job=3, epoch=epoch).encode(), addresses["A0"])
        return first[0], sent[0]

    assert verdicts(11) == ("stale", "forwarded")
    assert verdicts(12) == ("stale", "forwarded")

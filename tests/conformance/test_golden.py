"""The golden table and the reference model check each other, and both the C++ encoding."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from jax_passing import _native
from jax_passing.conformance.exchanges import golden, model, random_exchanges
from jax_passing.conformance.exchanges.differences import difference, shown, state_difference
from jax_passing.conformance.exchanges.exchange import Played, answered_by_model, final_states
from jax_passing.conformance.exchanges.model import Limits, State, is_newer
from jax_passing.protocol.packet import HEADER, LANES_MAX, TAG_BYTES, TAGGED, MalformedError, Packet, decode
from jax_passing.protocol.verdicts import VERDICTS

CASES = golden.read()
LONG = Limits(lanes_per_chunk=LANES_MAX)  # any packet of the table fits


def test_model_does_what_the_table_says():
    assert [case.description for case in CASES if answered_by_model(case, LONG) != case] == []


def test_descriptions_are_unique():
    assert max(Counter((case.section, case.description) for case in CASES).values()) == 1


def test_every_verdict_is_in_the_table_and_comes_by_chance():
    assert {step.verdict for case in CASES for step in case.steps} == set(VERDICTS) - {"too_far"}  # of a switch's reach
    exchanges = [random_exchanges.exchange(seed, Limits(reach=64)) for seed in range(100)]
    assert {step.verdict for exchange in exchanges for step in exchange.steps} == set(VERDICTS)


@pytest.mark.parametrize("lanes", [8, 64, 256])
def test_cases_fit_switches_that_take_whole_chunks(lanes):
    limits = Limits(lanes_per_chunk=lanes, whole_chunks=True)
    applicable = [case.fitted(limits) for case in CASES if not case.not_applicable(limits)]
    assert len(applicable) > 140
    for exchange in applicable:
        assert answered_by_model(exchange, limits) == exchange


def test_a_random_exchange_can_be_replayed():
    assert random_exchanges.exchange(7, Limits()) == random_exchanges.exchange(7, Limits())
    assert random_exchanges.exchange(7, Limits()) != random_exchanges.exchange(8, Limits())


def _decoded(data):
    try:
        return "none", decode(data)
    except MalformedError as error:
        return str(error), None


def test_packets_are_those_of_the_cpp_code():
    """Both find the same packets malformed, among those of the table and damaged ones. The seed is fixed."""
    rng = random.Random(5)
    packets = [step.packet for case in CASES for step in case.steps]
    for _ in range(20_000):
        data = bytearray(rng.choice(packets))
        if data:
            data[rng.randrange(min(len(data), HEADER.size))] = rng.choice([0, 1, 2, 3, 4, 0x9A, rng.randrange(256)])
        if len(data) > 2 and rng.random() < 0.3:
            data[2] |= TAGGED
            data += rng.randbytes(rng.choice([TAG_BYTES, TAG_BYTES, TAG_BYTES - 4]))
        packets.append(bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.2 else data))
    pool = _native.SlotPool(slot_count=1)  # without jobs: every packet that can be decoded is of a foreign one
    for data in packets:
        verdict, *_ = pool.on_packet(data, ("192.0.2.1", 1024))
        _, packet = _decoded(data)
        assert verdict == ("malformed" if packet is None else "foreign_job"), data.hex()
        assert packet is None or packet.encode() == data


def test_newer_is_serial_number_arithmetic():
    assert is_newer(1, 0)
    assert not is_newer(0, 0)
    assert not is_newer(0, 1)
    assert is_newer(0, 2**32 - 1)
    assert is_newer(2**31, 0)
    assert is_newer(0, 2**31)
    assert not is_newer(2**31 + 1, 0)


FAR = {"2^30": range(2**30, 2**30 + 1), "between": range(2**30 + 1, 2**31 - 2), "end": range(2**31 - 2, 2**31 - 1)}


@pytest.mark.parametrize("name", FAR)
def test_what_is_far_ahead_is_tested(monkeypatch, name):
    """Cases fail with a model that takes as stale what is far ahead."""
    wrong = FAR[name]
    cases = random_exchanges.exchanges(Limits(), seed=0, count=6) if name == "between" else CASES
    newer = model.is_newer
    monkeypatch.setattr(
        model, "is_newer", lambda sequence, held: (sequence - held) % 2**32 not in wrong and newer(sequence, held)
    )
    assert any(answered_by_model(case, Limits()) != case for case in cases)


def test_a_difference_is_told():
    case = next(case for case in CASES if [step.verdict for step in case.steps] == ["added", "complete"])
    last = case.steps[1]
    right = {"A0": [last.out], "A1": [last.out]}
    assert difference(case, Played(right, ["added", "complete"], {"added": 1, "complete": 1, "stale": 0})) == ""
    assert "step 2: expected complete, got added\n" in difference(case, Played(right, ["added", "added"]))
    assert "after step 2 A1 expects a packet, got nothing" in difference(case, Played({"A0": [last.out]}))
    assert "X got a packet that it doesn't expect:" in difference(case, Played({**right, "X": [last.out]}))
    again = difference(case, Played({**right, "A1": [last.out] * 2}))
    assert "A1 got a packet that it doesn't expect, after the 1 that it expects:" in again
    assert "there came news" in difference(case, Played(right, strays=["news"]))
    assert "stale 1 times, not 0" in difference(case, Played(right, counts={"stale": 1}))
    states = final_states(case, LONG)
    assert states[9, 0] == State(False, 9, 0b11, True)
    assert state_difference(case, states, Played(right, states=states)) == ""
    assert "slot 9, version 0 holds nothing, expected sequence 9, workers 0x3, complete" in state_difference(
        case, states, Played(right, states={(9, 0): State()})
    )


def test_a_difference_is_told_by_fields_with_what_led_to_it():
    case = next(case for case in CASES if [step.verdict for step in case.steps] == ["added", "complete"])
    last = case.steps[1]
    wrong = replace(decode(last.out), flags=1, sequence=8, lanes=(6, 0))
    text = difference(case, Played({"A0": [wrong.encode()], "A1": [last.out]}))
    assert text.splitlines() == [
        "after step 2 A0 expects another packet:",
        "  expected result: flags 0, job 3, epoch 11, worker every, slot 9, sequence 9, version 0, sum, 2 lanes: "
        "00000006 fffffffb",
        "  got      result: flags 1, job 3, epoch 11, worker every, slot 9, sequence 8, version 0, sum, 2 lanes: "
        "00000006 00000000",
        "  which differs in flags: 1, not 0; sequence: 8, not 9; lane 1: 00000000, not fffffffb",
        "  step 1: A0 sends contribution: flags 0, job 3, epoch 11, worker 0, slot 9, sequence 9, version 0, sum, "
        "2 lanes: 00000005 fffffff9",
        "    must be: added, no answer",
        "  step 2: A1 sends contribution: flags 0, job 3, epoch 11, worker 1, slot 9, sequence 9, version 0, sum, "
        "2 lanes: 00000001 00000002",
        "    must be: complete, to A0 A1",
    ]
    assert "which differs in its form (bad_length)" in difference(case, Played({"A0": [last.out + b"\0"]}))
    assert "element count: 1, not 2" in difference(case, Played({"A0": [replace(wrong, lanes=(6,)).encode()]}))


def test_what_is_no_packet_is_shown_as_bytes():
    assert shown(b"") == "malformed packet (too_short) "
    assert shown(bytes.fromhex("9b0101000003")) == "malformed packet (too_short) 9b010100 0003"
    long = Packet(lanes=(7,) * (LANES_MAX + 1)).encode()
    assert shown(long).startswith(
        "malformed packet (bad_element_count) 9a010100 0000 0000 0000 0000 00000000 0001 08b9 "
    )
    assert shown(long).endswith("00000007 ... (8952 bytes)")


def test_packets_may_be_too_long_to_be_valid():
    assert _decoded(Packet(lanes=(1,) * (LANES_MAX + 1)).encode())[0] == "bad_element_count"

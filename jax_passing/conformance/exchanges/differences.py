"""Describes where a switch deviates from the protocol, for the one who repairs it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise

from jax_passing.conformance.exchanges.exchange import Exchange, Played, SlotVersion
from jax_passing.conformance.exchanges.model import State
from jax_passing.protocol.packet import (
    EVERY_WORKER,
    HEADER,
    RESULT,
    SUM,
    TYPES,
    MalformedError,
    Packet,
    decode,
)

STEPS_SHOWN = 12
LANES_SHOWN = 8
REORDERED_MAX = 64  # answers to one worker; a switch may send headers and whole results in runs of their own


def shown(data: bytes) -> str:
    """Describes a packet by its fields; if it is none, says why, and shows its bytes."""
    try:
        packet = decode(data)
    except MalformedError as error:
        return f"malformed packet ({error}) {_hexadecimal(data)}"
    worker = "every" if packet.worker == EVERY_WORKER else packet.worker
    lanes = " ".join(f"{lane:08x}" for lane in packet.lanes[:LANES_SHOWN])
    return (
        f"{TYPES[packet.type]}: flags {packet.flags}, job {packet.job}, epoch {packet.epoch}, worker {worker}, slot "
        f"{packet.slot}, sequence {packet.sequence}, version {packet.version}, "
        f"{'sum' if packet.lane_format == SUM else 'maximum'}, {packet.element_count} lanes: {lanes}"
        + "left out" * (packet.left_out > 0)
        + " ..." * (len(packet.lanes) > LANES_SHOWN)
    )


def _hexadecimal(data: bytes) -> str:
    """Writes the header's fields and the first lanes in hexadecimal, apart from each other."""
    offsets = [0, 4, 6, 8, 10, 12, 16, 18, *range(HEADER.size, HEADER.size + 4 * LANES_SHOWN + 4, 4)]
    words = [data[a:b].hex() for a, b in pairwise(offsets) if data[a:b]]
    return " ".join(words) + (f" ... ({len(data)} bytes)" if len(data) > offsets[-1] else "")


def difference(exchange: Exchange, played: Played) -> str:
    """Describes the first thing that the switch did otherwise; empty if there is none."""
    steps = exchange.steps
    if played.verdicts is not None:
        for index, (step, verdict) in enumerate(zip(steps, played.verdicts, strict=True)):
            if verdict != step.verdict:
                return f"step {index + 1}: expected {step.verdict}, got {verdict}{_story(exchange, played, index)}"
    for address in exchange.addresses():
        answers = ((index, answer) for index, step in enumerate(steps) if (answer := step.answer_to(address)))
        expected = [(index, played.translate(out, to)) for index, (to, out) in answers]
        if found := _first_unlike(address, expected, played.received.get(address, [])):
            return found[0] + _story(exchange, played, found[1])
    for stray in played.strays:
        return f"there came {stray}"
    expected_counts = Counter(step.verdict for step in steps)
    unlike = {name: count for name, count in (played.counts or {}).items() if count != expected_counts[name]}
    if unlike:
        counted = ", ".join(f"{name} {n} times, not {expected_counts[name]}" for name, n in unlike.items())
        return f"all answers are right, but it counted {counted}{_story(exchange, played, None)}"
    return ""


def state_difference(exchange: Exchange, expected: Mapping[SlotVersion, State], played: Played) -> str:
    """Describes the first slot that holds something else in the end; empty if there is none."""
    for (slot, version), state in (played.states or {}).items():
        if state != expected[slot, version]:
            return (
                f"in the end slot {_own_slot(exchange, played, slot)}, version {version} holds {state}, expected "
                f"{expected[slot, version]}{_story(exchange, played, None)}"
            )
    return ""


def _own_slot(exchange: Exchange, played: Played, slot: int) -> int:
    job = next(job for job in exchange.jobs if 0 <= slot - job.slot_first < job.slot_count)
    packet = Packet(job=job.number, epoch=job.epoch, slot=slot, lanes=(0,))
    return decode(played.translate(packet.encode(), ())).slot


def _first_unlike(
    address: str, expected: Sequence[tuple[int, bytes]], received: Sequence[bytes]
) -> tuple[str, int | None] | None:
    """Describes the first packet that differs, and after which step, if that is known. A packet may overtake some."""
    awaited = list(expected)
    for data in received:
        if not awaited:
            before = f", after the {len(expected)} that it expects" if expected else ""
            return f"{address} got a packet that it doesn't expect{before}:\n  got      {shown(data)}", None
        place = next((place for place, (_, out) in enumerate(awaited[:REORDERED_MAX]) if data == out), None)
        if place is None:
            index, out = awaited[0]
            return (
                f"after step {index + 1} {address} expects another packet:\n  expected {shown(out)}\n"
                f"  got      {shown(data)}\n  which differs in {_unlike(out, data)}"
            ), index
        del awaited[place]
    if awaited:
        index, out = awaited[0]
        return f"after step {index + 1} {address} expects a packet, got nothing:\n  expected {shown(out)}", index
    return None


def _unlike(expected: bytes, got: bytes) -> str:
    try:
        right, wrong = decode(expected), decode(got)
    except MalformedError as error:
        return f"its form ({error})"
    names = [field.name for field in fields(Packet) if field.name != "lanes"]
    found = [f"{name}: {b}, not {a}" for name in names if (a := getattr(right, name)) != (b := getattr(wrong, name))]
    if len(right.lanes) != len(wrong.lanes):
        found.append(f"element count: {len(wrong.lanes)}, not {len(right.lanes)}")
    else:
        lanes = [lane for lane, pair in enumerate(zip(right.lanes, wrong.lanes, strict=True)) if pair[0] != pair[1]]
        found += [f"lane {lane}: {wrong.lanes[lane]:08x}, not {right.lanes[lane]:08x}" for lane in lanes[:4]]
        if len(lanes) > 4:
            found.append(f"{len(lanes)} lanes in all")
    return "; ".join(found)


def _story(exchange: Exchange, played: Played, last: int | None) -> str:
    """Lists the packets that led to it, with the switch's own numbers: those for the slot version of step `last`, or
    all."""
    steps = list(enumerate(exchange.steps))
    if last is not None:
        own = _slot_version(exchange.steps[last].packet)
        steps = [
            (index, step) for index, step in steps[: last + 1] if index == last or _slot_version(step.packet) == own
        ]
    left_out = len(steps) - STEPS_SHOWN
    lines = [f"  ({left_out} packets before)"] if left_out > 0 else []
    for index, step in steps[-STEPS_SHOWN:]:
        upwards = step.packet[2:3] == bytes([RESULT])
        packet = shown(played.translate(step.packet, ("P",) if upwards else ()))
        to = f", to {' '.join(step.to)}" if step.to else ", no answer"
        to += f", without lanes to {' '.join(step.bare_to)}" if step.bare_to else ""
        lines.append(f"  step {index + 1}: {step.source} sends {packet}\n    must be: {step.verdict}{to}")
    return "\n" + "\n".join(lines)


def _slot_version(packet: bytes) -> tuple[bytes, bytes]:
    """Returns its slot, counted in four as in an exchange's jobs and parents, and its version."""
    return bytes([packet[11] % 4]) if len(packet) > 11 else b"", packet[16:17]

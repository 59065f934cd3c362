"""The switch, and the packets on the way to it and back, as a trial has seen them."""

import statistics
from collections.abc import Sequence

from jax_passing.doctor.findings import Finding, bad, good, left_out, warning
from jax_passing.doctor.trial import Passed, Seen


def findings(seen: Seen, switch: str) -> list[Finding]:
    """Reports the findings of a trial. `switch`: its address, for people."""
    at = f"switch {switch}"
    if seen.unreachable:
        remedy = "Start it (jax-passing switch), check the address, let TCP and UDP pass; see all of its log."
        return [bad(at, seen.unreachable, remedy), left_out("packets", "no switch answers")]
    if seen.locked:
        return [
            bad(
                at,
                seen.locked,
                "Give the job's key and name (--key-file and --job), and the switch its own key, or neither a key "
                "(docs/operate/switches.md).",
            ),
            left_out("packets", "joining needs the key"),
        ]
    answers = good(at, f"greets {seen.connect_s * 1e3:.1f} ms after TCP's first packet")
    if seen.refused and not seen.passed:
        return [
            answers,
            warning("packets", f"the trial didn't begin: {seen.refused}", "Try again when the switch has room."),
        ]
    if not seen.passed:
        remedy = "Is it stopped, or another program, or do packets go elsewhere (data address)? See all of its log."
        return [answers, bad("packets", f"the switch greets, but doesn't let a job begin: {seen.broken}", remedy)]
    return [answers, _packets(seen), *_threads(seen), _multicast(seen)]


def _packets(seen: Seen) -> Finding:
    check = "packets"
    first, last, data = seen.passed[0], seen.passed[-1], seen.data[0]
    long = f"{last.lanes} lanes ({last.packet_bytes} bytes, and those of IP and UDP)"
    raise_mtu = "Raise the MTU of all links on the way, or start the switch with a smaller --lanes-per-chunk."
    if last.trouble and not first.trouble:
        return bad(check, f"short ones go to {data} and come back, those of {long} don't: {last.trouble}", raise_mtu)
    if last.trouble:
        return bad(check, f"UDP to {data}: {last.trouble}", _let_pass(seen))
    if last.fragments:
        return warning(check, f"those of {long} go to {data} and come back, but only in fragments", raise_mtu)
    round_trip_us = statistics.median(last.times_s) * 1e6
    text = (
        f"{long} go to {data} and come back, without fragments; the sum of two workers takes "
        f"{round_trip_us:.0f} us (median, from Python)"
    )
    return _but_for_losses(check, text, seen.passed)


def _threads(seen: Seen) -> list[Finding]:
    if not seen.passed_later:
        return []
    check, others = "threads", list(zip(seen.data[1:], seen.passed_later, strict=True))
    if troubles := [f"UDP to {data}: {passed.trouble}" for data, passed in others if passed.trouble]:
        return [bad(check, "; ".join(troubles), _let_pass(seen))]
    text = f"each of the switch's {len(seen.data)} threads answers, at the UDP ports {_ports(seen)}"
    return [_but_for_losses(check, text, seen.passed_later)]


def _but_for_losses(check: str, text: str, passed: Sequence[Passed]) -> Finding:
    tried, lost = (sum(getattr(one, name) for one in passed) for name in ("tried", "lost"))
    if lost:
        again = f"of {tried} chunks {lost} had to be sent again"
        return warning(check, f"{text}; {again}", "Look for what loses packets on the way.")
    return good(check, text)


def _let_pass(seen: Seen) -> str:
    where = "firewalls on both machines, and between them"
    if len(seen.data) == 1:
        return f"Let UDP pass to {seen.data[0]} and back: {where}."
    return f"Let UDP to ports {_ports(seen)} pass, and back: {where}. Or start the switch with --threads 1."


def _ports(seen: Seen) -> str:
    return " to ".join(data.rpartition(":")[2] for data in (seen.data[0], seen.data[-1]))


def _multicast(seen: Seen) -> Finding:
    check = "multicast"
    if not seen.offers_group:
        return good(check, "the switch doesn't use it")
    problem = seen.deaf or seen.refused or seen.broken
    if not problem:
        return good(check, "packets to a multicast group come here")
    return warning(
        check,
        f"results go to each host by itself: {problem}",
        "Let multicast pass (IGMP snooping needs a querier), or spare the attempt: jax-passing switch --no-multicast.",
    )

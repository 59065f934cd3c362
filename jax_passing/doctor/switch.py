"""The switch, and the packets on the way to it and back, as a trial has seen them."""

import statistics

from jax_passing.doctor.findings import Finding, bad, good, left_out, warning
from jax_passing.doctor.trial import Seen


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
    return [answers, _packets(seen), _multicast(seen)]


def _packets(seen: Seen) -> Finding:
    check = "packets"
    first, last = seen.passed[0], seen.passed[-1]
    long = f"{last.lanes} lanes ({last.packet_bytes} bytes, and those of IP and UDP)"
    raise_mtu = "Raise the MTU of all links on the way, or start the switch with a smaller --lanes-per-chunk."
    if last.trouble and not first.trouble:
        return bad(
            check, f"short ones go to {seen.data} and come back, those of {long} don't: {last.trouble}", raise_mtu
        )
    if last.trouble:
        remedy = f"Let UDP pass to {seen.data} and back: firewalls on both machines, and between them."
        return bad(check, f"UDP to {seen.data}: {last.trouble}", remedy)
    if last.fragments:
        return warning(check, f"those of {long} go to {seen.data} and come back, but only in fragments", raise_mtu)
    tried, lost = (sum(getattr(one, name) for one in seen.passed) for name in ("tried", "lost"))
    round_trip_us = statistics.median(last.times_s) * 1e6
    text = (
        f"{long} go to {seen.data} and come back, without fragments; the sum of two workers takes "
        f"{round_trip_us:.0f} us (median, from Python)"
    )
    if lost:
        return warning(
            check, f"{text}; of {tried} chunks {lost} had to be sent again", "Look for what loses packets on the way."
        )
    return good(check, text)


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

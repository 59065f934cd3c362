"""Makes one time line of the flight records of all hosts, which Perfetto and Chrome show. Pure functions."""

from collections.abc import Iterable, Iterator
from typing import Any

from jax_passing.records.diagnosis import Diagnosis, HostView
from jax_passing.records.files import OURS, Record
from jax_passing.records.sentences import host_name, sum_name

_SWITCH = 100_000  # the number of the first switch's process; a host's is its rank


def trace_events(found: Diagnosis) -> Record:
    """Returns a document in the trace event format, with times in microseconds since 1970, by the clock of the lowest
    rank that is here."""
    events: list[Record] = []
    ahead_s: dict[str, float] = {}
    for view in found.hosts.values():
        events += _of_host(view)
        ahead_s[str(view.rank)] = view.ahead_s
    for number, switch in enumerate(found.switches):
        address = str(switch[OURS]["address"])
        ahead_s[address] = _switch_ahead_s(found, switch)
        events += _of_switch(switch, address, _SWITCH + number, ahead_s[address])
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "job": found.job,
            "epoch": found.epoch,
            "clocks_ahead_us": {name: round(1e6 * seconds, 3) for name, seconds in ahead_s.items()},
        },
    }


def _of_host(view: HostView) -> Iterator[Record]:
    def us(ns: float) -> float:
        return ns / 1e3 - 1e6 * view.ahead_s

    who = host_name(view.facts["host_name"], view.facts["address"])
    yield _named(view.rank, f"rank {view.rank}" + (f" ({who})" if who else ""))
    written_ns = view.facts["written_at"] * 1e9
    # Sums may overlap, and those in one row may not: this says when each row is free. Rows begin with 1, as Perfetto
    # takes thread 0 of a process for the one that has the process's number, and leaves out what overlaps there (seen in
    # version 52.0).
    free_at: list[float] = []
    for entry in sorted(view.sums.values(), key=lambda one: one["time_created_ns"]):
        begin = us(entry["time_created_ns"])
        end = max(begin, us(entry["time_discovered_completed_ns"] or written_ns))
        started = min(end, us(entry["time_discovered_started_ns"]))
        row = next((row for row, at in enumerate(free_at, 1) if at <= begin), len(free_at) + 1)
        if row > len(free_at):
            yield {"ph": "M", "name": "thread_name", "pid": view.rank, "tid": row, "args": {"name": "sums"}}
        free_at[row - 1 : row] = [end]
        about = {name: entry[name] for name in ("state", "execution", "step", "bytes", "op")}
        about |= {"dtype": entry["input_dtypes"][0], "site": entry["process_group"][1]}
        span = {"ph": "X", "pid": view.rank, "tid": row, "cat": "sum"}
        yield {**span, "name": sum_name(entry), "ts": begin, "dur": end - begin, "args": about}
        if started > begin:
            yield {**span, "name": "devices come", "ts": begin, "dur": started - begin}
    yield from _instants(view.facts["events"], view.rank, us)


def _of_switch(switch: Record, address: str, number: int, ahead_s: float) -> Iterator[Record]:
    yield _named(number, f"switch {address}")
    yield from _instants(switch["events"], number, lambda ns: ns / 1e3 - 1e6 * ahead_s)


def _switch_ahead_s(found: Diagnosis, switch: Record) -> float:
    """Returns by how much a switch's clock is ahead, as NTP does (RFC 5905): each host has asked to join before the
    switch noted that it joined, and has heard of the epoch's begin after the switch noted that. It is 0 if the records
    don't reach back so far."""
    at_most, at_least = [], []
    joined = {event["rank"]: event["at"] for event in _of_epoch(switch["events"], "joined", found)}
    began = [event["at"] for event in _of_epoch(switch["events"], "started", found)]
    for view in found.hosts.values():
        for heard in _of_epoch(view.facts["events"], "joined", found):
            at_least += [at - (heard["at"] - view.ahead_s) for at in began]
            asked = [
                event["at"]
                for event in view.facts["events"]
                if event["kind"] == "asks" and event["job"] == found.job and event["at"] <= heard["at"]
            ]
            if asked and view.rank in joined:
                at_most.append(joined[view.rank] - (max(asked) - view.ahead_s))
    return (max(at_least) + min(at_most)) / 2 if at_least and at_most else 0.0


def _of_epoch(events: Iterable[Record], kind: str, found: Diagnosis) -> list[Record]:
    about = kind, found.job, found.epoch
    return [event for event in events if (event["kind"], event["job"], event.get("epoch")) == about]


def _instants(events: Iterable[Record], process: int, us: Any) -> Iterator[Record]:
    for event in events:
        name = f"{event['kind']}: {event['text']}"
        place = {"ph": "i", "pid": process, "tid": 0, "s": "p", "cat": "event"}
        yield {**place, "name": name, "ts": us(event["at"] * 1e9)}


def _named(process: int, name: str) -> Record:
    return {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}}

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
    for view in found.hosts.values():
        events += _of_host(view)
    for number, switch in enumerate(found.switches):
        events += _of_switch(switch, _SWITCH + number)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "job": found.job,
            "epoch": found.epoch,
            "clocks_ahead_us": {str(rank): round(1e6 * view.ahead_s, 3) for rank, view in found.hosts.items()},
        },
    }


def _of_host(view: HostView) -> Iterator[Record]:
    def us(ns: float) -> float:
        return ns / 1e3 - 1e6 * view.ahead_s

    who = host_name(view.facts["host_name"], view.facts["address"])
    yield _named(view.rank, f"rank {view.rank}" + (f" ({who})" if who else ""))
    written_ns = view.facts["written_at"] * 1e9
    free_at: list[float] = []  # of each row: sums may overlap, and what is in one row may not
    for entry in sorted(view.sums.values(), key=lambda one: one["time_created_ns"]):
        begin = us(entry["time_created_ns"])
        end = max(begin, us(entry["time_discovered_completed_ns"] or written_ns))
        started = min(end, us(entry["time_discovered_started_ns"]))
        row = next((row for row, at in enumerate(free_at) if at <= begin), len(free_at))
        free_at[row : row + 1] = [end]
        about = {name: entry[name] for name in ("state", "execution", "step", "bytes", "op")}
        about |= {"dtype": entry["input_dtypes"][0], "site": entry["process_group"][1]}
        span = {"ph": "X", "pid": view.rank, "tid": row, "cat": "sum"}
        yield {**span, "name": sum_name(entry), "ts": begin, "dur": end - begin, "args": about}
        if started > begin:
            yield {**span, "name": "devices come", "ts": begin, "dur": started - begin}
    yield from _instants(view.facts["events"], view.rank, us)


def _of_switch(switch: Record, number: int) -> Iterator[Record]:
    yield _named(number, f"switch {switch[OURS]['address']}")
    yield from _instants(switch["events"], number, lambda ns: ns / 1e3)


def _instants(events: Iterable[Record], process: int, us: Any) -> Iterator[Record]:
    for event in events:
        name = f"{event['kind']}: {event['text']}"
        place = {"ph": "i", "pid": process, "tid": 0, "s": "p", "cat": "event"}
        yield {**place, "name": name, "ts": us(event["at"] * 1e9)}


def _named(process: int, name: str) -> Record:
    return {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}}

"""Reads from a trace of jax.profiler how long a GPU's streams computed and copied, and how much of it at once.
And how long the host took for calls of ours."""

import gzip
import json
import statistics
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

Spans = list[tuple[float, float]]


def union(spans: Iterable[tuple[float, float]]) -> Spans:
    """The same points in time, in order and apart from each other."""
    joined: Spans = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def length(spans: Iterable[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in union(spans))


def common(one: Spans, other: Spans) -> float:
    return length(one) + length(other) - length([*one, *other])


def streams_of(events: list[dict[str, Any]]) -> dict[str, dict[str, Spans]]:
    """Returns {"kernels": ..., "copies": ...} for each stream's name, in us."""
    names: dict[tuple[str, Any, Any], str] = {}
    for event in events:
        if event.get("ph") == "M" and event["name"] in ("process_name", "thread_name"):
            names[event["name"], event["pid"], event.get("tid")] = event["args"]["name"]
    processes = {pid: name for (kind, pid, _), name in names.items() if kind == "process_name"}
    streams: dict[str, dict[str, Spans]] = {}
    for event in events:
        if event.get("ph") != "X" or "GPU" not in processes.get(event["pid"], ""):
            continue
        name = names.get(("thread_name", event["pid"], event["tid"]), "")
        if not name.startswith("Stream"):
            continue  # what the profiler derives from the streams
        kind = "copies" if "memcpy" in event["name"].lower() else "kernels"
        span = (event["ts"], event["ts"] + event.get("dur", 0.0))
        streams.setdefault(name, {"kernels": [], "copies": []})[kind].append(span)
    return streams


def host_calls(events: list[dict[str, Any]], names: Collection[str]) -> list[float]:
    """Returns the us that operations of these names took on the host each time.

    XLA enqueues each operation under its name; for a custom call that is the time of its handler.
    """
    processes = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
    return [
        event.get("dur", 0.0)
        for event in events
        if event.get("ph") == "X" and event["name"] in names and "GPU" not in processes.get(event["pid"], "")
    ]


def summary(folder: Path, starts: Collection[str] = ()) -> dict[str, Any]:
    """Sums up the trace in this folder, with its path for Perfetto. `starts`: XLA's names of calls that start sums."""
    found = sorted(folder.rglob("*.trace.json.gz"))
    if not found:
        return {"left_out": "the profiler wrote no trace"}
    with gzip.open(found[-1], "rt") as file:
        events = json.load(file)["traceEvents"]
    streams, calls_us = streams_of(events), host_calls(events, starts)
    kernels = [span for stream in streams.values() for span in stream["kernels"]]
    copies = [span for stream in streams.values() for span in stream["copies"]]
    result: dict[str, Any] = {"trace": str(found[-1])}
    if not streams:
        return {**result, "left_out": "the trace has no stream of a GPU"}
    return {
        **result,
        "streams": {
            name: {f"{kind}_ms": length(spans) / 1e3 for kind, spans in stream.items()}
            for name, stream in sorted(streams.items())
        },
        "starts": {"count": len(calls_us), "us": statistics.median(calls_us), "slowest_us": max(calls_us)}
        if calls_us
        else None,
        "copies_ms": length(copies) / 1e3,
        "copies_beside_kernels_ms": common(kernels, copies) / 1e3,
    }

"""The status of a switch as metrics for Prometheus (docs/operate/watching.md). Pure.

Names of jobs and ranks come from hosts, so there may be any number of them: beyond some, they are told together.
"""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import InfoMetricFamily, Metric

from jax_passing.metrics.families import Maker
from jax_passing.protocol.overview import Document
from jax_passing.protocol.verdicts import VERDICTS
from jax_passing.switch.jobs.recoveries import STOOD_S

JOBS_MAX = 64  # with a label of their own, `job_name`, as Prometheus has a `job`; the others are one together
RANKS_MAX = 512  # of all jobs; those of a job that has no room are one together
OTHERS = "(others)"
STATES = ("forming", "preparing", "running")
_NO_EVENTS = dict.fromkeys(("epochs_started", "epochs_failed", "messages_malformed", "log_lines_dropped"), 0)
_MAKE = Maker("jax_passing_switch")
_JOB, _RANK = ("job_name", "shard"), ("job_name", "shard", "rank", "host")


def families(document: Document) -> Iterator[Metric]:
    """Makes the families of a switch's whole status document."""
    yield from _of_switch(document)
    yield from _of_packets(document["packets"] or {})
    yield from _of_recoveries(document)
    jobs = document["jobs"]
    yield _MAKE.gauge("jobs", "Jobs that have hosts here.", ("state",), [((s,), _count(jobs, s)) for s in STATES])
    shown = _shown(jobs)
    yield from _of_jobs(shown)
    yield from _of_ranks(shown)


def _of_switch(document: Document) -> Iterator[Metric]:
    switch = document["switch"]
    about = {name: str(switch[name] or "") for name in ("version", "data_plane", "parent")}
    yield InfoMetricFamily(_MAKE.prefix, "The switch itself.", about)
    yield _MAKE.gauge("up_seconds", "Time since it started.", (), [((), switch["up_s"])])
    used, total = switch["slots_used"], switch["slots"]
    yield _MAKE.gauge("slots", "Slots of the switch.", ("state",), [(("used",), used), (("free",), total - used)])
    yield _MAKE.gauge("connections", "Control connections.", (), [((), switch["connections"])])
    yield _MAKE.gauge("draining", "1 while it admits no new job.", (), [((), switch["draining"] is not None)])
    yield _MAKE.gauge("data_plane_failed", "1 while no packet is added up.", (), [((), bool(switch["trouble"]))])
    refused = sorted(document["refused_for"].items())
    yield _MAKE.counter("refusals", "Ranks and connections that weren't admitted.", ("reason",), _labelled(refused))
    text = "Happenings of the control plane, by the names of its counters."
    yield _MAKE.counter("events", text, ("event",), _labelled(sorted({**_NO_EVENTS, **document["counts"]}.items())))


def _of_recoveries(document: Document) -> Iterator[Metric]:
    classes = [((kind,), each["classes"], each["stood_s"]) for kind, each in document["recovered"].items()]
    text = "How long jobs stood from a failure until they ran again."
    yield _MAKE.histogram("recovery_seconds", text, ("error",), STOOD_S, classes)
    last: dict[tuple[str, ...], float] = {}  # without culprits: hosts choose names, so there would be ever more
    for one in document["recoveries"]:
        last.setdefault((one["job"], one["kind"]), one["stood_s"])
    text = "How long a job stood by its last failure of this kind, in the last hour."
    yield _MAKE.gauge("job_stood_seconds", text, ("job_name", "error"), last.items())


def _labelled(pairs: Iterable[tuple[str, float]]) -> list[tuple[tuple[str], float]]:
    return [((name,), value) for name, value in pairs]


def _of_packets(counted: Document) -> Iterator[Metric]:
    verdicts = [(name, counted[name]) for name in (*VERDICTS, "forged") if name in counted]
    yield _MAKE.counter(
        "packets", "Packets that came, by the switch's verdict on them.", ("verdict",), _labelled(verdicts)
    )
    ways = (("in", "received"), ("out", "sent"))
    there = [(way, counted[f"bytes_{name}"]) for way, name in ways if f"bytes_{name}" in counted]
    yield _MAKE.counter("bytes", "Bytes of packets, without headers of UDP.", ("direction",), _labelled(there))
    lost = [(name, counted[f"packets_{name}"]) for name in ("overflowed",) if f"packets_{name}" in counted]
    yield _MAKE.counter("packets_lost", "Packets that came faster than they were handled.", ("why",), _labelled(lost))


def _count(jobs: Sequence[Document], state: str) -> int:
    return sum(job["state"] == state for job in jobs)


def _key(job: Document) -> tuple[str, str]:
    return job["job"], str(job["shard"])


def _shown(jobs: Sequence[Document]) -> list[Document]:
    """Returns some jobs, with their members as far as there is room, and the others as one. Those that have run longest
    come first: jobs that never start don't displace them."""
    jobs = sorted(jobs, key=lambda job: (job["state"] != "running", -job["for_s"]))
    shown: list[Document] = []
    room = RANKS_MAX
    for job in jobs[:JOBS_MAX]:
        fits = len(job["members"]) <= room
        members = job["members"] if fits else [_together(job["members"])]
        room -= len(members) if fits else 0
        shown.append({**job, "members": members})
    if others := jobs[JOBS_MAX:]:
        shown.append(_one_job(others))
    return shown


def _one_job(jobs: Sequence[Document]) -> Document:
    totals = [job["total"] for job in jobs if job["total"] is not None]
    return {
        "job": OTHERS,
        "shard": "",
        "world_size": sum(job["world_size"] for job in jobs),
        "slots": sum(job["slots"] for job in jobs),
        "chunks_waiting": sum(job["chunks_waiting"] or 0 for job in jobs),
        "oldest": max((job["oldest"] for job in jobs if job["oldest"]), key=lambda o: o["waited_s"], default=None),
        "total": {name: sum(total[name] for total in totals) for name in totals[0]} if totals else None,
        "members": [_together([member for job in jobs for member in job["members"]])],
    }


def _together(members: Sequence[Document]) -> Document:
    """Makes one of many members: their counts are added up, and the longest silence is told."""
    totals = [member["total"] for member in members if member["total"] is not None]
    return {
        "rank": OTHERS,
        "host": OTHERS,
        "ranks": [rank for member in members for rank in member["ranks"]],
        "total": {name: sum(total[name] for total in totals) for name in totals[0]} if totals else None,
        "silent_s": max((member["silent_s"] for member in members if member["silent_s"] is not None), default=None),
    }


def _of_jobs(jobs: Sequence[Document]) -> Iterator[Metric]:
    def told(name: str) -> list[tuple[tuple[str, str], float]]:
        return [(_key(job), job[name]) for job in jobs if job[name] is not None]

    def total(name: str) -> list[tuple[tuple[str, str], float]]:
        return [(_key(job), job["total"][name]) for job in jobs if job["total"] is not None]

    here = [(_key(job), sum(len(member["ranks"]) for member in job["members"])) for job in jobs]
    yield _MAKE.gauge("job_ranks", "Ranks of the job that are here.", _JOB, here)
    yield _MAKE.gauge("job_world_size", "Ranks that the job needs.", _JOB, told("world_size"))
    yield _MAKE.gauge("job_slots", "Slots that the job has: its window.", _JOB, told("slots"))
    yield _MAKE.gauge("job_chunks_in_flight", "Chunks that aren't complete.", _JOB, told("chunks_waiting"))
    oldest = [(_key(job), job["oldest"]["waited_s"] if job["oldest"] else 0.0) for job in jobs]
    yield _MAKE.gauge("job_oldest_chunk_seconds", "Time for which the oldest of them waits.", _JOB, oldest)
    yield _MAKE.counter("job_chunks", "Chunks that all ranks have contributed to.", _JOB, total("chunks"))
    yield _MAKE.counter("job_bytes", "Bytes of these chunks, as one rank sends them.", _JOB, total("bytes"))


def _of_ranks(jobs: Sequence[Document]) -> Iterator[Metric]:
    known = [(_rank(job, member), member) for job in jobs for member in job["members"] if member["total"] is not None]

    def total(name: str) -> list[tuple[Sequence[str], float]]:
        return [(labels, member["total"][name]) for labels, member in known]

    silent = [(labels, member["silent_s"]) for labels, member in known]
    yield _MAKE.gauge("rank_silent_seconds", "Time since the rank's last contribution.", _RANK, silent)
    yield _MAKE.counter("rank_contributions", "Chunks of the rank that were added up.", _RANK, total("contributions"))
    yield _MAKE.counter("rank_resends", "Chunks of the rank that came again.", _RANK, total("resends"))
    yield _MAKE.counter("rank_last", "Chunks that the rank completed, as the last one.", _RANK, total("last"))
    waited = "Time in which some chunk lacked nothing but the rank's part."
    yield _MAKE.counter("rank_waited_seconds", waited, _RANK, total("waited_s"))


def _rank(job: Document, member: Document) -> tuple[str, str, str, str]:
    """Returns the labels of a member. A rack's switch is named by its lowest rank and its address."""
    if "rank" in member:
        return (*_key(job), member["rank"], member["host"])
    name = member["switch"] or member["hosts"][0]["name"] or member["address"]
    return (*_key(job), str(member["ranks"][0]), str(name))

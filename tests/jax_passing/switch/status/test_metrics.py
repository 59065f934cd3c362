"""The metrics of a switch say what its status says, in two forms, and there is a bounded number of them."""

import asyncio
import socket
import sys
import time
import urllib.request

import pytest
from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from jax_passing import http_server
from jax_passing.config import parse_address
from jax_passing.errors import ConfigError
from jax_passing.metrics import exposition
from jax_passing.switch.data_planes.job_counts import JobCounts, WaitingChunk, WorkerCounts
from jax_passing.switch.status import families as told
from jax_passing.switch.status.metrics_server import MetricsServer
from jax_passing.switch.status.report import AGAIN_S
from support.jobs.cluster import Switch as Process
from support.switch.control import scenario

PREFIX = "jax_passing_switch_"
COUNTS = JobCounts(
    chunks=100,
    lanes=36_000,
    waiting=2,
    oldest=WaitingChunk(slot=3, version=0, sequence=99, bitmap=0b01, waited_us=2_500_000),
    workers=(WorkerCounts(100, 1, 20, 1000, 50_000), WorkerCounts(100, 4, 80, 3_000_000, 2_550_000)),
)
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


async def asked(switch, path="/metrics", accept="text/plain"):
    """Returns the head of the answer, and its body."""
    listener = http_server.listen("127.0.0.1", 0)
    server = MetricsServer(switch.plane.report)
    await server.serve(listener)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(f"GET {path} HTTP/1.1\r\nAccept: {accept}\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    server.close()
    return head, body


def labels_of(sample):
    """Returns the values of a sample's labels, which its text has in the order of their names."""
    ordered = [name for name in ("job_name", "shard", "rank", "host") if name in sample.labels]
    return tuple(sample.labels[name] for name in ordered or sample.labels)


def samples(body, parse=text_parser.text_string_to_metric_families):
    found = {}
    for family in parse(body):
        for sample in family.samples:
            key = sample.name.removeprefix(PREFIX), labels_of(sample)
            assert key not in found
            found[key] = sample.value
    return found


@scenario()
async def test_a_running_job(switch):
    switch.data_plane.counted[1] = COUNTS
    await switch.job(host_name="node")
    head, body = await asked(switch)
    assert head.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=")
    found = samples(body)
    assert found["packets_total", ("added",)] == 7
    assert (found["slots", ("used",)], found["slots", ("free",)]) == (256, 768)
    assert found["jobs", ("running",)] == 1
    assert found["jobs", ("forming",)] == 0
    assert found["job_slots", ("a", "0")] == 256
    assert (found["job_ranks", ("a", "0")], found["job_world_size", ("a", "0")]) == (2, 2)
    assert (found["job_chunks_total", ("a", "0")], found["job_bytes_total", ("a", "0")]) == (100, 144_000)
    assert found["job_chunks_in_flight", ("a", "0")] == 2
    assert found["job_oldest_chunk_seconds", ("a", "0")] == 2.5
    for rank, (last, resends, waited_s, silent_s) in enumerate([(20, 1, 0.001, 0.05), (80, 4, 3.0, 2.55)]):
        labels = "a", "0", str(rank), "node"
        assert found["rank_last_total", labels] == last
        assert found["rank_resends_total", labels] == resends
        assert found["rank_waited_seconds_total", labels] == waited_s
        assert found["rank_silent_seconds", labels] == silent_s
    assert found["events_total", ("epochs_started",)] == 1
    assert found["events_total", ("log_lines_dropped",)] == 0
    assert found["refusals_total", ("key",)] == found["draining", ()] == found["data_plane_failed", ()] == 0


@scenario()
async def test_openmetrics(switch):
    switch.data_plane.counted[1] = COUNTS
    await switch.job()
    head, body = await asked(switch, accept=OPENMETRICS)
    assert "Content-Type: application/openmetrics-text; version=1.0.0" in head
    assert samples(body, openmetrics_parser.text_string_to_metric_families)["job_chunks_total", ("a", "0")] == 100


@scenario()
async def test_refusals_by_their_reasons(switch):
    await switch.job()
    assert "is running" in await (await switch.join(0)).refusal()
    assert "below the world size" in await (await switch.join(5, 2, job="b")).refusal()
    found = samples((await asked(switch))[1])
    assert (found["refusals_total", ("taken",)], found["refusals_total", ("unfit",)]) == (1, 1)


@scenario()
async def test_health(switch):
    switch.plane.report._made_at = float("-inf")
    assert (await asked(switch, "/health"))[0].startswith("HTTP/1.1 200 ")
    switch.plane.jobs.drain.begin([], "new cables")
    switch.plane.report._made_at = float("-inf")
    head, body = await asked(switch, "/health")
    assert head.startswith("HTTP/1.1 503 ")
    assert body == "the operator drains this switch: new cables\n"
    switch.plane.jobs.drain.undo()
    switch.data_plane.broken = "its tables are empty"
    switch.plane.report._made_at = float("-inf")
    assert (await asked(switch, "/health"))[1] == "the data plane has failed: its tables are empty\n"
    assert samples((await asked(switch))[1])["data_plane_failed", ()] == 1


def job(name, ranks, shard=0):
    member = {"switch": None, "address": "10.0.0.1", "hosts": [{"name": "node"}], "silent_s": 1.0}
    total = {"contributions": 10, "resends": 1, "last": 2, "waited_s": 0.5}
    return {
        "job": name,
        "shard": shard,
        "state": "running",
        "for_s": 10.0,
        "world_size": ranks,
        "slots": 4,
        "chunks_waiting": 1,
        "oldest": None,
        "total": {"chunks": 5, "bytes": 50},
        "members": [{**member, "ranks": [rank], "total": total} for rank in range(ranks)],
    }


@pytest.mark.parametrize("count", [told.JOBS_MAX + 1, 256])
def test_jobs_beyond_some_are_told_together(count):
    document = {**EMPTY, "jobs": [job(f"job {number}", 2) for number in range(count)]}
    found = found_in(document)
    others = count - told.JOBS_MAX
    assert found["job_chunks_total", ("(others)", "")] == 5 * others
    assert found["job_ranks", ("(others)", "")] == 2 * others
    assert found["rank_contributions_total", ("(others)", "", "(others)", "(others)")] == 20 * others
    assert sum(name == "job_slots" for name, _ in found) == told.JOBS_MAX + 1
    assert sum(value for (name, _), value in found.items() if name == "job_bytes_total") == 50 * count


def test_jobs_that_have_run_longest_have_labels_of_their_own():
    forming = [{**job(f"forming {number}", 1), "state": "forming", "for_s": 100.0} for number in range(told.JOBS_MAX)]
    document = {**EMPTY, "jobs": [*forming, {**job("new", 1), "for_s": 1.0}, job("old", 1)]}
    found = found_in(document)
    assert ("job_slots", ("old", "0")) in found
    assert ("job_slots", ("new", "0")) in found
    assert found["job_ranks", ("(others)", "")] == 2


def test_ranks_beyond_some_are_told_together():
    document = {**EMPTY, "jobs": [job(f"job {number}", 60) for number in range(20)]}
    found = found_in(document)
    assert sum(name == "rank_last_total" for name, _ in found) == 8 * 60 + 12
    assert found["rank_last_total", ("job 8", "0", "(others)", "(others)")] == 120
    assert found["rank_silent_seconds", ("job 8", "0", "(others)", "(others)")] == 1.0
    assert found["job_ranks", ("job 8", "0")] == 60


EMPTY = {
    "switch": {
        **dict.fromkeys(("version", "data_plane", "parent", "trouble"), ""),
        **dict.fromkeys(("up_s", "slots_used", "slots", "connections"), 1),
        "draining": None,
    },
    "packets": None,
    "counts": {},
    "refused_for": {},
    "recovered": {},
    "recoveries": [],
}


def found_in(document):
    return {
        (sample.name.removeprefix(PREFIX), labels_of(sample)): sample.value
        for family in told.families(document)
        for sample in family.samples
    }


def test_a_rack_is_named_by_its_lowest_rank_and_its_switch():
    rack = {**job("a", 1)["members"][0], "ranks": [4, 5, 6], "switch": "10.0.1.1:7171"}
    document = {**EMPTY, "jobs": [{**job("a", 0), "members": [rack]}]}
    assert found_in(document)["rank_last_total", ("a", "0", "4", "10.0.1.1:7171")] == 2


def test_a_switchs_process_counts_lines_that_its_log_leaves_out():
    process = Process("127.0.0.1:0", "--metrics", "0", "--verbose")
    try:
        url = process.wait_for(r"metrics at (http://\S+): /metrics, /health")[1]
        assert urllib.request.urlopen(f"{url}/health", timeout=60).read() == b"this switch admits jobs\n"
        for _ in range(30):
            with socket.create_connection(parse_address(process.address), timeout=60) as connection:
                connection.sendall(b"nonsense\n")
                assert connection.makefile("rb").read()
        time.sleep(AGAIN_S)
        found = samples(urllib.request.urlopen(f"{url}/metrics", timeout=60).read().decode())
        assert found["events_total", ("messages_malformed",)] == 30
        assert found["events_total", ("log_lines_dropped",)] >= 8
    finally:
        process.stop()


@pytest.mark.parametrize("version", ["1.0.1", "1.0.99999", "x", "1.0.0.0", ""])
def test_callers_dont_make_up_forms(version):
    made_up = f"application/openmetrics-text; version={version}; escaping=dots"
    assert exposition.form_of(made_up) == exposition.form_of("text/plain; version=7; escaping=values") == ""
    assert exposition.written(list, made_up).content_type.startswith("text/plain; version=")
    form = exposition.form_of(OPENMETRICS)
    assert form == exposition.form_of(f"{OPENMETRICS}; escaping=dots, text/plain") == exposition.form_of(form)


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match="pip install prometheus-client, or leave"):
        exposition.listen(("127.0.0.1", 0))

"""The web page of a switch tells what its status tells, to whoever calls it by its own name, and only reads."""

import asyncio
import json
import logging
import re
import signal
import socket
import urllib.request
from importlib.resources import files

import pytest

from jax_passing.config import parse_address
from jax_passing.errors import ConfigError
from jax_passing.protocol.overview import overview
from jax_passing.switch.data_planes.job_counts import JobCounts, WaitingChunk, WorkerCounts
from jax_passing.switch.jobs import recoveries
from jax_passing.switch.jobs.recent import SAMPLE_S
from jax_passing.switch.status import page_server
from jax_passing.switch.status.page_server import PageServer
from support.jobs.cluster import Switch as Process
from support.switch.control import scenario

BEGAN = JobCounts(0, 0, 0, None, (WorkerCounts(), WorkerCounts()))
COUNTS = JobCounts(
    chunks=100,
    lanes=36_000_000,
    waiting=2,
    oldest=WaitingChunk(slot=3, version=0, sequence=99, bitmap=0b01, waited_us=2_500_000),
    workers=(WorkerCounts(100, 1, 20, 0, 50_000), WorkerCounts(100, 9, 80, 2_500_000, 2_550_000)),
)


async def asked(switch, path="/status.json", host="localhost:1", method="GET"):
    """Returns the head of the answer, and its body."""
    listener = page_server.listen("127.0.0.1", 0)
    server = PageServer(switch.plane.report, switch.plane.history, "switch.example", "10.0.0.1:7171")
    await server.serve(listener)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    server.close()
    return head, body


@scenario()
async def test_it_tells_what_the_status_tells(switch):
    switch.plane._watch.stop()  # else it looks by itself, too
    switch.data_plane.counted[1] = COUNTS
    await switch.job(host_name="node")
    refused = await switch.join(7, 2)
    await refused.refusal()
    head, body = await asked(switch)
    assert "Content-Type: application/json" in head
    seen = json.loads(body)
    told, history, by_reason = seen.pop("sentences"), seen.pop("history"), seen.pop("refused_for")
    assert seen.pop("left_out") == {"jobs": 0, "ranks": 0}
    document = switch.plane.report._made  # a slow machine would make another one
    assert seen == json.loads(json.dumps(overview({"10.0.0.1:7171": document})))
    assert by_reason == document["refused_for"]
    assert by_reason["unfit"] == 1
    (job,) = told["jobs"]
    assert job[0][0].startswith("running for ")
    assert ["Stands still: slot 3, sequence 99 waits for rank 1, 2.5 s.", "bad"] in job
    assert any(re.match(r"Rank 1 \(node, 127\.0\.0\.1\) is late", text) and tone == "note" for text, tone in job)
    assert "Rank 7 isn't below the world size 2" in told["refusals"][0]
    assert (history["span_s"], history["jobs"]) == (600.0, {})


@scenario()
async def test_it_has_the_last_minutes_of_a_job_through_its_epochs(switch):
    plane, recent = switch.plane, switch.plane._watch._recent
    plane._watch.stop()
    now = plane.outside.now()
    hosts, _ = await switch.job()
    switch.data_plane.counted[1] = BEGAN
    recent.look(plane.jobs.epochs(), now + SAMPLE_S)
    switch.data_plane.counted[1] = COUNTS
    recent.look(plane.jobs.epochs(), now + 2 * SAMPLE_S)
    hosts[0].writer.close()
    await hosts[1].receive()
    await switch.job()
    recent.look(plane.jobs.epochs(), now + 3 * SAMPLE_S)
    (points,) = plane.history.points(now).values()
    assert [round((point.at - now) / SAMPLE_S) for point in points] == [1, 2, 3]
    second = points[1]
    assert second.goodput_gbit == pytest.approx(36e6 * 32 / SAMPLE_S / 1e9)
    assert (second.latest, second.latest_share, second.usual_share) == (1, 0.5, 0.0)
    assert second.resends == 2.0
    told = json.loads((await asked(switch))[1])["history"]["jobs"]["a"]
    assert [point[1:] for point in told] == [list(point[1:]) for point in points]


@scenario()
async def test_memory_for_plots_is_bounded(switch):
    plane, recent = switch.plane, switch.plane._watch._recent
    plane._watch.stop()
    for number in range(recoveries.JOBS_MAX + 2):
        hosts, _ = await switch.job(world_size=1, job=f"job {number}")
        switch.data_plane.counted = dict.fromkeys(range(1, 999), JobCounts(0, 0, 0, None, (WorkerCounts(),)))
        recent.look(plane.jobs.epochs(), plane.outside.now() + 10 * number * SAMPLE_S)
        hosts[0].writer.close()
        await switch.has(job=f"job {number}")
    assert len(plane.history._by_job) == recoveries.JOBS_MAX
    assert plane.history.points(plane.outside.now() + 1e6) == {}


@scenario()
async def test_files_and_what_browsers_may_do_with_them(switch):
    for path, kind in (("/", "html"), ("/page.js", "javascript"), ("/page.css", "css"), ("/status.json", "json")):
        head, body = await asked(switch, path)
        assert head.startswith("HTTP/1.1 200 OK\r\n")
        assert re.search(rf"^Content-Type: \S+/{kind}", head, re.M)
        policy = re.search(r"^Content-Security-Policy: (.*)", head, re.M)[1]
        assert "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'" in policy
        assert "frame-ancestors 'none'; require-trusted-types-for 'script'" in policy
        assert "unsafe" not in policy
        assert "X-Content-Type-Options: nosniff" in head
        assert "Cross-Origin-Resource-Policy: same-origin" in head
        assert "Access-Control-Allow" not in head
        short, nothing = await asked(switch, path, method="HEAD")
        assert short.startswith("HTTP/1.1 200 ")
        assert (nothing, bool(body)) == ("", True)
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert (await asked(switch, path, method=method))[0].startswith("HTTP/1.1 405 ")
    for path in ("/metrics", "/../page.js", "/page.js/", "/index.html"):
        assert (await asked(switch, path))[0].startswith("HTTP/1.1 404 ")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9472", 200),
        ("127.0.0.1", 200),
        ("[::1]:9472", 200),
        ("localhost:8080", 200),  # by a tunnel of ssh
        ("LocalHost", 200),
        ("switch.example:9472", 200),  # as its operator calls it
        ("rebound.example:9472", 421),
        ("localhost.rebound.example", 421),
        ("127.0.0.1.rebound.example:9472", 421),
        ("switch.example.rebound.example", 421),
        ("127.0.0.1:9472@rebound.example", 421),
        ("", 421),
    ],
)
def test_names_by_which_nobody_should_call_it(host, status):
    @scenario()
    async def call(switch):
        for path in ("/", "/status.json"):
            head, body = await asked(switch, path, host)
            assert head.startswith(f"HTTP/1.1 {status} "), head
            assert status == 200 or "10.0.0.1" not in body

    call()


@scenario()
async def test_texts_of_strangers_move_nothing(switch):
    name = "<img src=x onerror=alert(1)>\u202e"
    await switch.job(world_size=1, job=name)
    seen = json.loads((await asked(switch))[1])
    assert seen["jobs"][0]["job"] == "<img src=x onerror=alert(1)>\\u202e"
    script = (files("jax_passing.switch.status") / "page" / "page.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc", script)


def test_no_more_is_shown_than_somebody_looks_at():
    def job(name, state, for_s, *sizes):
        members = [{"ranks": list(range(size))} for size in sizes]
        about = {"absent": [], "left": [], "oldest": None, "awaits": ""}
        return {"job": name, "state": state, "for_s": for_s, "members": members, **about}

    forming = [job(f"forming {number}", "forming", 9.0, 1) for number in range(page_server.JOBS_MAX + 2)]
    jobs = [*forming, job("old", "running", 8.0, 1024, 1000), job("older", "running", 9.0, 20, 5, 1)]
    shown, left_out = page_server._bounded({"jobs": jobs, "more": 1})
    assert shown["more"] == 1
    assert [each["job"] for each in shown["jobs"][:3]] == ["older", "old", "forming 0"]
    assert [len(each["members"]) for each in shown["jobs"][:2]] == [3, 1]
    assert len(shown["jobs"]) == page_server.JOBS_MAX
    assert left_out == {"jobs": 4, "ranks": 1000 + 4}


def lacking(name, state):
    """A job of which two ranks are here, and all others are absent."""
    hosts = [{"ranks": [rank]} for rank in (0, 1)]
    oldest = {"missing": [1, 9], "waits_for": "rank " * 9999}
    about = {"left": [0, 5], "oldest": oldest, "awaits": "rank " * 9999, "absent": list(range(2, 1024))}
    return {"job": name, "state": state, "for_s": 1.0, "members": hosts, **about}


def test_ranks_that_are_absent_count_as_well():
    jobs = [lacking(f"job {number}", "forming") for number in range(page_server.JOBS_MAX)]
    shown, left_out = page_server._bounded({"jobs": jobs})
    assert [len(job["members"]) for job in shown["jobs"]] == [2] * page_server.JOBS_MAX
    absent = sum(len(job["absent"]) for job in shown["jobs"])
    assert absent + 2 * page_server.JOBS_MAX == page_server.RANKS_MAX
    assert left_out == {"jobs": 0, "ranks": 1024 * page_server.JOBS_MAX - page_server.RANKS_MAX}
    for job in shown["jobs"]:
        assert (job["left"], job["oldest"]["missing"]) == ([0], [1])
        assert len(job["awaits"]) + len(job["oldest"]["waits_for"]) < 2100
    assert len(jobs[0]["absent"]) == 1022  # the status still has them


@pytest.mark.parametrize(("host", "warns"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_a_page_for_others_than_this_machine_is_warned_of(host, warns, caplog):
    @scenario(switch_key=b"k" * 32)
    async def show(switch):
        listener = page_server.listen(host, 0)
        server = PageServer(switch.plane.report, switch.plane.history, host, "10.0.0.1:7171")
        await server.serve(listener)
        server.close()

    caplog.set_level(logging.WARNING, "jax_passing.switch")
    show()
    assert ("tells all of the status to everybody who reaches it, without the key" in caplog.text) is warns


def test_an_address_that_is_no_address_of_this_machine():
    with pytest.raises(ConfigError, match=r"Can't show the page at 192\.0\.2\.1:1"):
        page_server.listen("192.0.2.1", 1)


def test_a_switchs_process_shows_it():
    process = Process("127.0.0.1:0", "--page", "0")
    try:
        url = process.wait_for(r"page at (http://127\.0\.0\.1:\d+): /, /page\.css, /page\.js, /status\.json")[1]
        assert b"<title>jax-passing switch</title>" in urllib.request.urlopen(url, timeout=60).read()
        seen = json.load(urllib.request.urlopen(f"{url}/status.json", timeout=60))
        assert seen["switches"][0]["address"] == process.address
        with socket.create_connection(parse_address(url.removeprefix("http://"))):  # as browsers have, for later
            process.signal(signal.SIGTERM)
            assert process.wait() == 0
        assert "Traceback" not in process.text
    finally:
        process.stop()

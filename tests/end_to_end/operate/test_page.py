"""The page of a real switch in a headless Chromium, on a desk and on a phone."""

import json
import re
import signal
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support.jobs.cluster import Cluster, Process
from support.net.browser import CHROMIUM, Browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium isn't installed (Debian: apt-get install chromium)")
HOSTILE = "<img src=x onerror=document.title='seized'>"


@pytest.fixture
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


def start(cluster: Cluster, hosts: int, **env: str) -> tuple[str, list[Process]]:
    """Starts a switch with a page, and hosts that sum. Returns the page's address, and the hosts."""
    cluster.switch = cluster.start_switch("127.0.0.1:0", "--page", "0")
    url = cluster.switch.wait_for(r"page at (http://\S+): /")[1]
    return url, cluster.start("faults/endless.py", "300", hosts=hosts, env=env)


def problems(browser: Browser) -> list[str]:
    """Returns what the console of the browser has complained of."""
    told = [event for event in browser.events if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")]
    return [json.dumps(event["params"]) for event in told]


def text(browser: Browser) -> str:
    found: str = browser.value("document.body.innerText")
    return found


def test_a_job_and_who_stands_still(cluster: Cluster, browser: Browser) -> None:
    url, hosts = start(cluster, 3, JAX_PASSING_JOB=HOSTILE)
    browser.open(url)
    browser.until(
        "document.querySelectorAll('.job').length == 1 && document.querySelectorAll('.job tbody tr').length == 3"
    )
    browser.until("document.querySelectorAll('.job .state')[0].innerText == 'running'")
    shown = text(browser)
    assert HOSTILE in shown
    assert f"switch {cluster.switch.address}" in shown
    assert re.search(r"running for [\d.]+ s, epoch \d+, 3 ranks, at", shown)
    assert re.search(r"slots\s+1024 used, 15360 free", shown)
    # The plots are there after two samples, and the tree at once.
    browser.until("[...document.querySelectorAll('.plot path.first')].every(p => p.getAttribute('d').includes('L'))")
    assert browser.value("document.querySelectorAll('.tree circle.well').length") == 3
    assert (
        browser.value("[...document.querySelectorAll('.tree circle + text')].map(t => t.textContent).join()") == "0,1,2"
    )
    before = browser.value("document.querySelector('.job').innerText")
    browser.until(f"document.querySelector('.job').innerText != {json.dumps(before)}")  # it is live

    hosts[1].signal(signal.SIGSTOP)
    browser.until("document.querySelectorAll('.tree circle.awaited').length == 1")
    browser.until("/Stands still: endless\\.py:\\d+.* waits for rank 1,/.test(document.body.innerText)")
    assert browser.value("document.querySelector('.tree circle.awaited + text').textContent") == "1"
    assert browser.value("document.title").startswith("⚠ switch ")
    hosts[1].signal(signal.SIGCONT)
    browser.until("document.querySelectorAll('.tree circle.awaited').length == 0")

    hosts[2].signal(signal.SIGKILL)
    browser.until("/Recoveries of the last hour\\s.*hasn't run again: rank 2 \\(/.test(document.body.innerText)")
    browser.until("document.body.innerText.includes('No jobs.')")
    assert browser.value("document.title").startswith("switch ")
    assert problems(browser) == []
    assert browser.value("document.querySelectorAll('img').length") == 0

    cluster.switch.stop()
    browser.until("document.querySelector('#connection.stale') !== null")
    assert re.search(r"no answer for \d+ s", text(browser))


def test_a_job_called_as_what_objects_have_and_one_that_cant_be_shown(cluster: Cluster, browser: Browser) -> None:
    url, _ = start(cluster, 0)
    browser.open(url)
    browser.until("document.body.innerText.includes('No jobs.')")
    hosts = [{"rank": 0, "address": "", "name": "node7"}]
    member = {"ranks": [0], "switch": None, "address": "10.0.0.2", "hosts": hosts}
    unknown = {"waited_s": None, "waited_share": None, "last_share": None, "resends": None, "silent_s": None}
    job = {
        **{"job": "constructor", "state": "running", "goodput_gbit": 1.0, "link_gbit": None, "oldest": None},
        **{part: [] for part in ("absent", "left", "late", "parents")},
        "members": [
            {**each, **unknown, "has_left": False}
            for each in (member, {**member, "ranks": [1, 3], "switch": "10.0.0.3:7171"})
        ],
    }
    jobs = [{**job, "job": "strange", "members": None}, job]
    told = browser.value(f"""fetch('status.json').then(answer => answer.json()).then(seen => {{
        seen.jobs = {json.dumps(jobs)};
        seen.sentences.jobs = seen.jobs.map(each => [[`about ${{each.job}}`, ""]]);
        show(seen);
        return [...document.querySelectorAll('.job')].map(each => each.innerText);
    }})""")
    strange, constructor = told
    assert strange.startswith("strange")
    assert "This page can't show the job" in strange
    assert re.search(r"(?s)constructor.*about constructor.*Goodput\s+no sums yet.*node7.*1, 3\s+switch 10", constructor)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(cluster: Cluster, browser: Browser, scheme: str, tmp_path: Path) -> None:
    url, _ = start(cluster, 2)
    browser.resize(390, 844, is_phone=True)
    browser.prefer(scheme)
    browser.open(url)
    browser.until("document.querySelectorAll('.job tbody tr').length == 2")
    browser.until("document.querySelectorAll('.plot path.first').length == 3")
    assert browser.value("document.documentElement.scrollWidth") == 390
    wide = "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > 390).length"
    assert browser.value(wide) == 0
    red, green, blue = map(int, re.findall(r"\d+", browser.value("getComputedStyle(document.body).backgroundColor")))
    assert (red + green + blue > 600) == (scheme == "light")
    browser.screenshot(tmp_path / "phone.png")
    assert (tmp_path / "phone.png").stat().st_size > 10_000


class Elsewhere(SimpleHTTPRequestHandler):
    """Some other page, on this machine: browsers let strangers' pages ask local addresses for even less."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>elsewhere</title>")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_page_elsewhere_can_neither_show_nor_read_it(cluster: Cluster) -> None:
    switch = cluster.start_switch("127.0.0.1:0", "--page", "0")
    url = switch.wait_for(r"page at (http://\S+): /")[1]
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server,
        Browser("--host-resolver-rules=MAP * 127.0.0.1") as browser,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.open(f"http://127.0.0.1:{server.server_port}/")
        browser.until("document.title == 'elsewhere'")
        assert browser.value(f"fetch('{url}/status.json').then(a => a.text(), e => 'failed')") == "failed"
        embed = f"new Promise(done => {{ const frame = document.createElement('iframe'); frame.src = '{url}/'; "
        assert browser.value(embed + "frame.onload = () => done(true); document.body.append(frame); })")
        (child,) = browser.call("Page.getFrameTree")["frameTree"]["childFrames"]
        assert child["frame"]["unreachableUrl"] == f"{url}/", child
        # The name of a stranger's page leads to this machine since a moment ago.
        browser.open(url.replace("127.0.0.1", "rebound.example"))
        browser.until("document.body.innerText.startsWith('Misdirected Request')")
        browser.open(url.replace("127.0.0.1", "localhost"))
        browser.until("document.body.innerText.includes('No jobs.')")
        server.shutdown()

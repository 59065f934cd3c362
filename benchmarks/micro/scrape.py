"""Measures the cost of a scrape of a switch's metrics by its parts, and the lateness of the control loop meanwhile.

    python benchmarks/micro/scrape.py --ranks 64

Hosts have joined, and are another process; nothing is summed. A task of the switch's loop sleeps 2 ms again and again,
and notes by how much it wakes up late.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable

from jax_passing import http_server
from jax_passing.config import parse_address
from jax_passing.metrics import exposition
from jax_passing.protocol import control_messages as messages
from jax_passing.switch.data_planes.software import SoftwareDataPlane
from jax_passing.switch.jobs.history import POINTS, Point
from jax_passing.switch.server.control_server import ControlServer
from jax_passing.switch.server.serve import _listen
from jax_passing.switch.server.settings import SwitchSettings
from jax_passing.switch.status import report
from jax_passing.switch.status.families import families
from jax_passing.switch.status.metrics_server import MetricsServer
from jax_passing.switch.status.page_server import PageServer

ALL_HERE = "all are here"


async def host(address: tuple[str, int], rank: int, ranks: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*address)
    hello = messages.decode_from_switch(await reader.readline())
    assert isinstance(hello, messages.Hello)
    join = messages.Join(
        messages.PROTOCOL_VERSION, "train", rank, ranks, (hello.instance,), 1000 + rank, f"process {rank}", 60.0
    )
    writer.write(messages.encode(join))
    return reader, writer


async def hosts(address: tuple[str, int], ranks: int) -> None:
    several = [await host(address, rank, ranks) for rank in range(ranks)]
    for reader, _ in several:
        assert isinstance(messages.decode_from_switch(await reader.readline()), messages.Welcome)
    print(ALL_HERE, flush=True)
    while True:
        await asyncio.sleep(2)
        for _, writer in several:
            writer.write(messages.encode(messages.Heartbeat()))


def median_ms(function: Callable[[], object], times: int = 200) -> float:
    taken = []
    for _ in range(times):
        began = time.thread_time()
        function()
        taken.append(time.thread_time() - began)
    return 1e3 * statistics.median(taken)


async def lateness_ms(seconds: float) -> str:
    late = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        await asyncio.sleep(0.002)
        late.append(1e3 * (time.perf_counter() - began) - 2)
    late.sort()
    return ", ".join(f"{share:g} %: {late[int(len(late) * share / 100) - 1]:.2f} ms" for share in (50, 99, 99.9, 100))


def scrape(address: tuple[str, int], pause_s: float) -> None:
    while True:
        with urllib.request.urlopen("http://{}:{}/metrics".format(*address), timeout=10) as answer:
            assert answer.read().startswith(b"# HELP ")
        time.sleep(pause_s)


def child(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE)


async def main(ranks: int, seconds: float) -> None:
    listener = _listen("127.0.0.1", 0)
    address = listener.getsockname()
    plane = SoftwareDataPlane(*address, slot_total=16384, lanes_per_chunk=360, multicast=False)
    server = ControlServer(plane, SwitchSettings(page=("127.0.0.1", 0)))
    await server.listen(listener)
    members = child("--ranks", str(ranks), "--hosts-of", "{}:{}".format(*address))
    assert members.stdout is not None
    assert (await asyncio.to_thread(members.stdout.readline)).decode().strip() == ALL_HERE
    try:
        told = server.plane.report
        (epoch,) = server.plane.jobs.epochs()
        document = told.document()
        print(f"{ranks} ranks; processor time in the control loop, medians of 200:")
        print(f"  the data plane's lock, for its counters: {median_ms(lambda: plane.counts(epoch.job.number)):.3f} ms")
        print(f"  the whole document: {median_ms(lambda: told._make(0.0)):.3f} ms, at most every {report.AGAIN_S} s")
        text = exposition.written(lambda: families(document), "")
        print(f"  on a thread, {len(text.body)} bytes of text: ", end="")
        print(f"{median_ms(lambda: exposition.written(lambda: families(document), '')):.2f} ms")
        assert server.plane.history is not None
        page = PageServer(told, server.plane.history, "127.0.0.1", "127.0.0.1:7171")
        points = {"train": [Point(0.0, 1.0, 0.5, 1, 0.1, 3.0)] * POINTS}
        shown = page._write(document, points, 0.0)
        print(f"  on a thread, {len(shown.body)} bytes of JSON for the page: ", end="")
        print(f"{median_ms(lambda: page._write(document, points, 0.0)):.2f} ms")
        metrics = http_server.listen("127.0.0.1", 0)
        await MetricsServer(told).serve(metrics)
        print(f"lateness of the loop in {seconds:g} s, shares of all wake-ups:")
        print(f"  without scrapes: {await lateness_ms(seconds)}")
        for name, pause_s in (("a scrape a second", 1.0), ("scrapes one after the other", 0.0)):
            scraper = child("--scrape", "{}:{}".format(*metrics.getsockname()), "--pause-s", str(pause_s))
            await asyncio.sleep(1)
            print(f"  {name}: {await lateness_ms(seconds)}")
            scraper.kill()
            scraper.wait(10)
    finally:
        members.kill()
        members.wait(10)
        await server.shut_down()
        plane.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--hosts-of", type=parse_address, help=argparse.SUPPRESS)
    parser.add_argument("--scrape", type=parse_address, help=argparse.SUPPRESS)
    parser.add_argument("--pause-s", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hosts_of:
        asyncio.run(hosts(arguments.hosts_of, arguments.ranks))
    elif arguments.scrape:
        scrape(arguments.scrape, arguments.pause_s)
    else:
        asyncio.run(main(arguments.ranks, arguments.seconds))

"""A host's own view of its job, and its metrics by HTTP."""

import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import jax
import jax.numpy as jnp
import pytest
from prometheus_client.parser import text_string_to_metric_families

import jax_passing
from jax_passing.config import parse_address
from jax_passing.errors import ConfigError
from jax_passing.host.status import SessionStatus, WaitingSum
from support.jax.sessions import init_beside, total
from support.jobs.cluster import free_address
from support.switch.in_process import until

ONES = jnp.ones((2, 8))


def free_port():
    return parse_address(free_address())[1]


def scraped(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        (
            sample.name.removeprefix("jax_passing_host_"),
            tuple(sample.labels[name] for name in ("job_name", "rank", "size", "le") if name in sample.labels),
        ): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_host_that_waits_says_for_what_and_where(running):
    session, other = init_beside(running)
    summed = total(ONES)  # the other host never sends its part
    until(lambda: session.status().oldest is not None)
    status = session.status()
    assert (status.job, status.rank, status.world_size, status.switches) == ("test", 0, 2, (running.address,))
    assert (status.sums_completed, status.sums_in_flight, status.error) == (0, 1, None)
    assert "sessions.py:" in status.oldest.source
    assert 0 <= status.oldest.waited_s < 60
    assert 0 < status.busy_share <= 1
    text = rf"rank 0 of 2 in job 'test', epoch {session.epoch}, at {running.address}: 0 sums, 0 kbit/s, "
    assert re.match(re.escape(text) + r"\d+% of the time in sums, \d+ resends\. Of 1 under way", str(status))
    other.lose_switch()
    until(lambda: session.error)
    failed = session.status()
    assert (failed.sums_in_flight, failed.oldest) == (0, None)
    assert failed.error.startswith("HostLostError: ")
    with pytest.raises(jax.errors.JaxRuntimeError):
        summed.block_until_ready()
    session.shutdown()
    other.close()


def test_a_host_alone(session):
    assert float(total(ONES)[0, 0]) == 2
    status = session.status()
    assert (status.switches, status.oldest, status.busy_gbit, status.busy_share) == ((), None, 0.0, 0.0)


def test_the_line_of_a_job_that_goes_well():
    status = SessionStatus(
        *("train", 2, 4, 7, ("a:1", "b:1"), None),
        session_s=10.0,
        sums_completed=48,
        sums_in_flight=3,
        busy_gbit=0.91234,
        busy_share=0.306,
        resends=12,
        oldest=WaitingSum("train.py:31 (grads)", 400, 0, 0.14),
    )
    assert str(status) == (
        "rank 2 of 4 in job 'train', epoch 7, at a:1,b:1: 48 sums, 912 Mbit/s, 31% of the time in sums, "
        "12 resends. Of 3 under way, the oldest is train.py:31 (grads) (execution 400, step 0), for 0.1 s."
    )


def test_the_line_of_a_host_without_a_switch():
    with jax_passing.init() as session:
        assert str(session.status()).startswith("rank 0 of 1 without a switch: 0 sums, ")


def test_metrics_of_a_host(running):
    port = free_port()
    with jax_passing.init(running.address, rank=0, world_size=1, metrics=str(port)) as session:
        total(jnp.ones((2, 100_000))).block_until_ready()
        until(lambda: session.stats()["sums_completed"] == 1)
        found = scraped(port)
        labels = "test", "0"
        assert found["sums_completed_total", labels] == 1
        assert found["tensor_bytes_total", labels] == session.stats()["tensor_bytes"] > 0
        assert found["failed", labels] == found["sums_in_flight", labels] == 0
        assert found["window_chunks", labels] > 0
        counts = {key[1][2:]: value for key, value in found.items() if key[0] == "sum_seconds_bucket"}
        assert [size for size, bound in counts if bound == "+Inf"] == [
            *("4 KiB", "64 KiB", "1 MiB", "16 MiB", "256 MiB", "larger")
        ]
        assert counts["1 MiB", "+Inf"] == 1
        assert counts["4 KiB", "+Inf"] == 0
        assert 0 < found["sum_seconds_sum", (*labels, "1 MiB")] < 60
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=20).read() == b"sums go on\n"
    with pytest.raises(urllib.error.URLError):
        scraped(port)


def test_health_of_a_host_whose_sums_fail(running):
    port = free_port()
    session, other = init_beside(running, metrics=f"127.0.0.1:{port}")
    other.lose_switch()
    until(lambda: session.error)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=20)
    assert refused.value.code == 503
    assert refused.value.read().startswith(b"HostLostError: Rank 1 ")
    other.close()
    with jax_passing.init(world_size=1, rank=0, metrics=str(port)):  # in its place, at the same port
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=20).status == 200


def test_a_port_that_is_taken_is_told_before_others_see_this_host(running):
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(ConfigError, match="Can't tell metrics at .*: Address already in use"):
        jax_passing.init(running.address, rank=0, world_size=1, metrics=str(taken.getsockname()[1]))
    with jax_passing.init(running.address, rank=0, world_size=1):
        pass


FORK = """
import os, socket, sys, time
import jax_passing
session = jax_passing.init(world_size=1, rank=0, metrics=sys.argv[1])
child = os.fork()
if not child:
    time.sleep(60)
session.shutdown()
socket.create_server(("127.0.0.1", int(sys.argv[1]))).close()  # raises if the child has it
os.kill(child, 9)
os.waitpid(child, 0)
print("free")
"""


def test_a_forked_child_doesnt_keep_the_port():
    began = time.monotonic()
    command = [sys.executable, "-P", "-c", FORK, str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "free\n", done.stderr
    assert time.monotonic() - began < 55

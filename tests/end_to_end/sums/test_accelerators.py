"""Hosts whose sums go the way of GPUs, on CPU devices with a driver that stands in for CUDA's."""

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.jobs.cluster import digest

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster

ROOT = Path(__file__).parents[3]
DEADLINE_S = 8
# XLA needs many threads: one waits in the done call of each device, and others in collectives between the devices.
MANY_THREADS = {"NPROC": "16"}


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The shared library of tests/xla_ffi/cuda."""
    library = tmp_path_factory.mktemp("driver") / "libfake_cuda_driver.so"
    source = ROOT / "tests" / "xla_ffi" / "cuda" / "fake_driver.cc"
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-shared", "-fPIC", "-pthread", f"-I{ROOT / 'xla_ffi'}"]
    subprocess.run([*command, str(source), "-o", str(library)], check=True, timeout=120)
    return str(library)


def test_every_dtype_and_transform_between_a_gpu_and_a_cpu_host(cluster: "Cluster", driver: str) -> None:
    processes = cluster.run("as_on_gpu.py", driver, "0", "sums/sums.py", devices=1)
    assert ["as on a GPU" in process.text for process in processes] == [True, False]
    digest(processes)  # the bits of both


def test_steps_on_two_gpu_hosts_have_the_bits_of_cpu_hosts(cluster: "Cluster", driver: str) -> None:
    digests = {digest(cluster.run("as_on_gpu.py", driver, ranks, "sums/held.py", devices=1)) for ranks in ("0,1", "")}
    assert len(digests) == 1


def test_sums_in_pieces_have_the_bits_of_cpu_hosts(cluster: "Cluster", driver: str) -> None:
    digests = {
        digest(cluster.run("as_on_gpu.py", driver, ranks, "sums/pieces.py", devices=1)) for ranks in ("0,1", "1", "")
    }
    assert len(digests) == 1


@pytest.mark.parametrize("devices", [1, 2])
def test_residuals_on_a_gpu_and_a_cpu_host(cluster: "Cluster", driver: str, devices: int) -> None:
    arguments = ("as_on_gpu.py", driver, "0", "sums/residuals.py", "int8")
    for process in cluster.run(*arguments, devices=devices, env=MANY_THREADS):
        assert "residuals right" in process.text


def test_hosts_that_issue_sums_in_another_order(cluster: "Cluster", driver: str) -> None:
    for process in cluster.run("as_on_gpu.py", driver, "0,1", "order/matching.py", "1", hosts=3, devices=1):
        assert "rounds 1" in process.text


def test_sums_that_only_some_executions_come_to(cluster: "Cluster", driver: str) -> None:
    for process in cluster.run("as_on_gpu.py", driver, "0", "order/conditional.py", "loop", "agree", devices=1):
        assert "all steps are right" in process.text


@pytest.mark.parametrize(
    ("program", "devices", "ranks"),
    [
        ("sums/devices_first.py", 4, "1"),
        ("sums/sums.py", 2, "1"),
        ("sums/held.py", 4, "0,1"),
        ("sums/pieces.py", 2, "0,1"),
    ],
)
def test_devices_that_add_up_first_have_the_bits_of_cpu_hosts(
    cluster: "Cluster", driver: str, program: str, devices: int, ranks: str
) -> None:
    def bits(ranks: str) -> str:
        processes = cluster.run("as_on_gpu.py", driver, ranks, program, devices=devices, env=MANY_THREADS)
        for rank, process in enumerate(processes):
            assert ("devices add up first" in process.text) == (str(rank) in ranks)
        return digest(processes)

    assert bits(ranks) == bits("")


# Here the first sum's call pins it, for GPUs XLA has it done before. One sum at a time needs a block for each group.
def test_a_programs_memory_is_pinned_before_it_runs(cluster: "Cluster", driver: str) -> None:
    processes = cluster.run("as_on_gpu.py", driver, "0", "sums/chain.py", driver, devices=4, env=MANY_THREADS)
    pinned = [int(process.wait_for(r"pinned (\d+)")[1]) for process in processes]
    assert pinned == [5 * 2 * 4096 * 4, 0]  # sums, groups, float32


def test_a_killed_host_of_several_devices_is_an_error_by_name(cluster: "Cluster", driver: str) -> None:
    arguments = ("as_on_gpu.py", driver, "0,1", "faults/endless.py", str(DEADLINE_S))
    processes = cluster.start(*arguments, devices=2, env=MANY_THREADS)
    for process in processes:
        process.wait_for("running as process")
    processes[1].signal(signal.SIGKILL)
    assert processes[0].wait_for(r"^raised (\w+) after")[1] == "HostLostError", processes[0].text
    processes[0].wait_for("went on with 2.0")
    assert processes[0].wait() == 0, processes[0].text


def test_a_killed_host_is_an_error_by_name_and_the_process_goes_on(cluster: "Cluster", driver: str) -> None:
    processes = cluster.start("as_on_gpu.py", driver, "0,1,2", "faults/endless.py", str(DEADLINE_S), hosts=3, devices=1)
    for process in processes:
        process.wait_for("running as process")
    processes[1].signal(signal.SIGKILL)
    for rank in (0, 2):
        assert processes[rank].wait_for(r"^raised (\w+) after")[1] == "HostLostError", processes[rank].text
        processes[rank].wait_for("went on with 1.0")
        assert "ranks (1,)\n" in processes[rank].text
        assert processes[rank].wait() == 0, processes[rank].text

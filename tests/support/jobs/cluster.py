"""Real switches and real host processes on loopback. Every wait is bounded, every process is stopped by its pid."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = Path(__file__).parents[2] / "end_to_end" / "programs"
LIMIT_S = 100.0  # of what takes a few seconds: a busy machine needs less, and only a hang exceeds it
PASSING = [sys.executable, "-P", "-m", "jax_passing"]
# For hosts whose many programs run once, and so take longer to optimise than to run. Not for those that train, or where
# XLA's order of sums is what is tested.
COMPILED_FAST = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
# sums.py takes these where a test is of what carries sums: they travel in all the ways that elements can.
SOME_DTYPES = ("bool", "int8", "uint64", "bfloat16", "float32", "float64")


class Process:
    """A child whose output is collected while it runs."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        # Unit tests of the same run forbid conversions of dtypes, which users' programs may make.
        own = {name: text for name, text in os.environ.items() if not name.startswith("JAX_NUMPY_")}
        environment = {**own, "PYTHONUNBUFFERED": "1", **(env or {})}
        self.popen = subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=1
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, pattern: str, timeout_s: float = LIMIT_S) -> re.Match[str]:
        """Waits for a line that matches."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if match := re.search(pattern, line):
                    return match
            if self.popen.poll() is not None and not self._reader.is_alive():
                break
            time.sleep(0.01)
        raise AssertionError(f"no line matches {pattern!r} after {timeout_s} s, in:\n{self.text}")

    def wait(self, timeout_s: float = LIMIT_S) -> int:
        try:
            code = self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s:\n{self.text}") from None
        self._reader.join(5)
        return code

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def stop(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait(10)


class Switch(Process):
    def __init__(self, listen: str = "127.0.0.1:0", *flags: str) -> None:
        super().__init__([*PASSING, "switch", "--listen", listen, *flags])
        self.address = self.wait_for(r"listening on (\S+:\d+)")[1]


def host_settings(switch: str, job: str, rank: int, world_size: int, devices: int = 1) -> dict[str, str]:
    """The environment of a host."""
    return {
        "PYTHONHASHSEED": "0",  # as `jax-passing run` says
        "JAX_PASSING_SWITCH": switch,
        "JAX_PASSING_JOB": job,
        "JAX_PASSING_RANK": str(rank),
        "JAX_PASSING_WORLD_SIZE": str(world_size),
        "JAX_NUM_CPU_DEVICES": str(devices),
        "JAX_PLATFORMS": "cpu",
    }


def free_address() -> str:
    """For the coordinator of `jax.distributed`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def finish(processes: Sequence[Process], timeout_s: float = 600) -> None:
    """All of them, without an error."""
    deadline = time.monotonic() + timeout_s
    for rank, process in enumerate(processes):
        code = process.wait(max(1, deadline - time.monotonic()))
        assert code == 0, f"rank {rank} exited with {code}:\n{process.text}"


def digest(processes: Sequence[Process]) -> str:
    """Returns the digest of all results' bits that each of them has told: it is the same for all."""
    finish(processes)
    (found,) = {process.wait_for(r"^digest (\w+)$", 1)[1] for process in processes}
    return found


def counters(switch: Process) -> dict[str, int]:
    """Ends the switch, which then tells what it counted."""
    switch.signal(signal.SIGTERM)
    assert switch.wait() == 0, switch.text
    last = switch.wait_for("^shut down: (.*)", 1)[1]
    return {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", last)}


class Cluster:
    """Starts programs of tests/end_to_end/programs as the hosts of one job."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.switch = self.start_switch()

    def start_switch(self, listen: str = "127.0.0.1:0", *flags: str) -> Switch:
        switch = Switch(listen, *flags)
        self.processes.append(switch)
        return switch

    def start(
        self, program: str, *args: str, hosts: int = 2, devices: int = 2, env: dict[str, str] | None = None
    ) -> list[Process]:
        command = [sys.executable, str(PROGRAMS / program), *args]
        job = Path(program).name
        settings = [host_settings(self.switch.address, job, rank, hosts, devices) for rank in range(hosts)]
        started = [Process(command, own | (env or {})) for own in settings]
        self.processes += started
        return started

    def run(
        self,
        program: str,
        *args: str,
        hosts: int = 2,
        devices: int = 2,
        env: dict[str, str] | None = None,
        timeout_s: float = 200,
    ) -> list[Process]:
        """Runs to the end; every host must succeed."""
        started = self.start(program, *args, hosts=hosts, devices=devices, env=env)
        finish(started, timeout_s)
        return started

    def stop(self) -> None:
        for process in self.processes:
            process.stop()

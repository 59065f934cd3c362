"""Hosts, switches and programs that go wrong under JAX's own collectives: every host raises within the deadline, by
name, and its process lives on; or it works."""

import re
import signal
import time
from typing import TYPE_CHECKING

import pytest

from support.jobs import for_jax
from support.jobs.cluster import PASSING, PROGRAMS, Process, finish, free_address

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster

DEADLINE = {"JAX_PASSING_DEADLINE_S": "8", "JAX_PASSING_JOIN_DEADLINE_S": "8", "JAX_PASSING_WARN_S": "2"}


def raised(process: "Process") -> str:
    """Returns the text of what a host raised, which must have left the process alive."""
    match = process.wait_for(r"^raised \w+ after [\d.]+ s: (.*)")
    process.wait_for("lives on", 10)
    assert process.wait() == 0, process.text
    return match[1]


def value(process: "Process") -> str:
    return process.wait_for(r"^(?:value|raised) .*", 150)[0]


@pytest.mark.parametrize("kind", ["operation", "kind", "ring", "dtype", "exchange", "exchange or sum", "order"])
def test_hosts_that_call_different_collectives(cluster: "Cluster", kind: str) -> None:
    for process in for_jax.start(cluster, "different.py", kind, hosts=3, env=DEADLINE):
        text = raised(process)
        assert "MPI error: " in text, text
        assert re.search(r"ProgramMismatchError|DeadlineExceededError", text), text


def test_a_host_that_sums_over_another_axis(cluster: "Cluster") -> None:
    """The others sum within themselves, and miss nothing."""
    first, odd, last = for_jax.start(cluster, "different.py", "other axis", hosts=3, devices=2, env=DEADLINE)
    for process in (first, last):
        assert value(process).startswith("value [[2."), process.text
    assert re.search(r"MPI error: (JoinError|HostLostError)", raised(odd)), odd.text  # the others have ended by then


def test_a_host_that_calls_once_more(cluster: "Cluster") -> None:
    """The others have ended their work, and wait for nothing."""
    first, odd = for_jax.start(cluster, "different.py", "more", env=DEADLINE)
    assert value(first).startswith("value")
    raised(odd)


@pytest.mark.parametrize("kind", [pytest.param("killed", marks=pytest.mark.smoke), "killed in an exchange"])
def test_a_host_that_is_killed(cluster: "Cluster", kind: str) -> None:
    processes = for_jax.start(cluster, "different.py", kind, hosts=3, env=DEADLINE)
    for rank in (0, 2):
        text = raised(processes[rank])
        assert "HostLostError" in text, text
        assert "rank 1" in text.lower(), text  # said by the switch, or by the connection to it


def test_a_host_that_stops(cluster: "Cluster") -> None:
    processes = for_jax.start(cluster, "different.py", "endless", hosts=3, env=DEADLINE)
    for process in processes:
        process.wait_for("goes on")
    processes[1].signal(signal.SIGSTOP)
    for rank in (0, 2):
        text = raised(processes[rank])
        assert "rank 1" in text.lower(), text


def test_a_switch_that_is_killed(cluster: "Cluster") -> None:
    processes = for_jax.start(cluster, "different.py", "endless", env=DEADLINE)
    for process in processes:
        process.wait_for("goes on")
    cluster.switch.signal(signal.SIGKILL)
    for process in processes:
        assert "SwitchLostError" in raised(process)


def test_no_switch(cluster: "Cluster") -> None:
    env = DEADLINE | {"JAX_PASSING_SWITCH": "127.0.0.1:1"}
    for process in for_jax.start(cluster, "different.py", "slow", "0", env=env):
        assert "SwitchUnreachableError" in raised(process)


def test_programs_that_nobody_awaits(cluster: "Cluster") -> None:
    """XLA needs more threads for them than its two devices and the one core have."""
    for process in for_jax.start(cluster, "different.py", "unawaited", devices=2, env=DEADLINE):
        assert value(process).startswith("value [[1."), process.text


@pytest.mark.parametrize("kind", [pytest.param("alike", marks=pytest.mark.smoke), "alike, first", "alike rings"])
def test_collectives_that_look_alike_never_meet(cluster: "Cluster", kind: str) -> None:
    """Where all hosts' programs are new, as in the second case, the next calls are told apart."""
    for process in for_jax.start(cluster, "different.py", kind, devices=2, env=DEADLINE):
        text = raised(process)
        assert re.search("DeadlineExceededError" if kind == "alike rings" else "ProgramMismatchError", text), text
        assert re.search(r"of execution \d of program [12]", text), text


def test_hosts_with_different_numbers_of_devices(cluster: "Cluster") -> None:
    """JAX's own collectives go over them; ours don't."""
    for process in for_jax.start(cluster, "different.py", "unequal", env=DEADLINE):
        assert "ConfigError" in process.wait_for(r"^raised .*", 150)[0], process.text
        assert "have different numbers of devices. JAX's own collectives go over them" in process.text, process.text


def test_a_program_that_ends_before_its_first_collective(cluster: "Cluster") -> None:
    """Python ends threads of XLA that are in it by then, and with them the process."""
    processes = for_jax.start(cluster, "ends.py", devices=2, env=DEADLINE)
    finish(processes)


def test_control_c_in_a_wait(cluster: "Cluster") -> None:
    """With one device a host waits in Python's main thread."""
    waits, _ = for_jax.start(cluster, "different.py", "slow", "60", env=DEADLINE | {"JAX_PASSING_DEADLINE_S": "60"})
    waits.wait_for("met")
    time.sleep(1)
    waits.signal(signal.SIGINT)
    waits.wait_for("^KeyboardInterrupt", 20)


@pytest.mark.slow
def test_more_elements_than_an_int_counts(cluster: "Cluster") -> None:
    for process in for_jax.start(cluster, "different.py", "too large", env=DEADLINE):
        text = raised(process)
        assert "31 bits" in text, text


def test_arrays_without_elements(cluster: "Cluster") -> None:
    for process in for_jax.start(cluster, "different.py", "empty", env=DEADLINE):
        assert value(process).startswith("value (2, 0, 3)")


@pytest.mark.parametrize("moment", ["first", "last"])
def test_a_program_on_some_of_the_hosts(cluster: "Cluster", moment: str) -> None:
    """The others compute something else, or end at once, which others' sums survive."""
    env = {**DEADLINE, "JAX_PASSING_DEADLINE_S": "3"}
    processes = for_jax.start(cluster, "some_hosts.py", moment, hosts=3, devices=2, env=env)
    finish(processes)
    for process in processes:
        process.wait_for("^as expected$", 1)


def test_a_host_that_dies_before_its_first_collective(cluster: "Cluster") -> None:
    """It opens the session with the others, so that they hear at once why it ends."""
    *others, _ = for_jax.start(cluster, "some_hosts.py", "dies", hosts=3, env=DEADLINE)
    for process in others:
        process.wait_for(r"HostLostError: Rank 2 left .*: it stopped with AssertionError: the last host dies", 60)


@pytest.mark.parametrize("way", [for_jax.OURS, for_jax.GLOO], ids=["ours", "gloo"])
def test_jax_distributed_is_initialized_anew(cluster: "Cluster", way: dict[str, str]) -> None:
    """Nobody may ask the new coordinator before this process has connected to it."""
    finish(for_jax.start(cluster, "anew.py", way=way, env={**DEADLINE, "COORDINATOR_ANEW": free_address()}))


def test_control_c_at_the_end(cluster: "Cluster") -> None:
    """A process that waits for the others at its end, and is interrupted, lets them end."""
    ends, other = for_jax.start(cluster, "some_hosts.py", "idle", env=DEADLINE)
    ends.wait_for("^as expected$")
    time.sleep(1)
    ends.signal(signal.SIGINT)
    for process in (ends, other):
        assert process.wait(60) == 0, process.text


def test_hosts_that_sum_over_different_devices(cluster: "Cluster") -> None:
    """To MPI the groups look the same where they have the same first device: their numbers must never meet."""
    *both, odd = for_jax.start(cluster, "different.py", "part and all", hosts=3, env=DEADLINE)
    for process in both:
        assert value(process).startswith("value [[2."), process.text
    assert re.search(r"JoinError: .*0, 1|HostLostError: Rank [01]", raised(odd)), odd.text


def test_a_jaxlib_of_another_kind(cluster: "Cluster") -> None:
    for process in for_jax.start(cluster, "different.py", "operation", env={"NO_CLIQUES": "1"}):
        text = process.wait_for(r".*ConfigError: .*", 100)[0]
        assert "a test says so" in text, text


def test_many_communicators(cluster: "Cluster") -> None:
    for process in for_jax.start(cluster, "different.py", "many", "300", devices=3):
        assert value(process).startswith("value all right"), process.text


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["slow", "late communicator"])
def test_a_host_that_comes_late(cluster: "Cluster", kind: str) -> None:
    """XLA ends a process whose devices wait 40 s for one another; ours wait for 60 s, the deadline."""
    for process in for_jax.start(cluster, "different.py", kind, "50", devices=2):
        assert value(process).startswith("value"), process.text


def test_the_launcher(cluster: "Cluster") -> None:
    """One flag, and no variable of the user's."""
    command = [*PASSING, "run", "--for-jax", "--hosts", "2", "--switch", cluster.switch.address]
    started = Process(
        [*command, str(PROGRAMS / "for_jax" / "launched.py")], {"COORDINATOR": free_address(), "JAX_PLATFORMS": "cpu"}
    )
    cluster.processes.append(started)
    assert started.wait() == 0, started.text
    assert len(re.findall(r"sum 3\.0 over mpi", started.text)) == 2, started.text

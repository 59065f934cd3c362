"""`jax-passing drain` and `jax-passing end`, at a switch whose hosts are in this process."""

import contextlib
import json
import os
import socket
import threading
import time

import pytest

from jax_passing.errors import SwitchDrainingError
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import keys, local_operators
from support.keys import write_key
from support.switch.in_process import Member, SwitchThread, leave, members, settings_of, until


@pytest.fixture
def running():
    switch = SwitchThread()
    yield switch
    switch.stop()


@pytest.fixture
def run(run):
    """Returns the output in one line, however narrow the terminal is."""

    def joined(*arguments):
        code, out = run(*arguments)
        return code, " ".join(out.split())

    return joined


def end(several):
    for member in several:
        until(lambda member=member: member.failure is not None)
        member.close()


def test_the_user_of_the_switch_drains_it_and_goes_on(running, run):
    hosts = members(running, 2)
    assert run("drain", running.address, "--reason", "new kernel") == (
        0,
        f"The switch at {running.address} drains: it admits no new job. 1 job is left.",
    )
    _, seen = run("status", running.address)
    assert "Draining for" in seen
    assert "s (new kernel): it admits no new job." in seen
    with pytest.raises(SwitchDrainingError, match=r"drains it \(new kernel\)"):
        Member(settings_of(running, 0, job="another"))
    waiting = threading.Thread(target=leave, args=(hosts,))
    waiting.start()
    assert run("drain", running.address, "--wait")[1].endswith("No jobs are left.")
    waiting.join()
    assert run("drain", running.address, "--undo") == (0, f"The switch at {running.address} admits new jobs.")
    leave(members(running, 2))
    time.sleep(0.5)
    assert json.loads(run("status", running.address, "--json")[1])["switches"][0]["draining"] is None


def test_the_user_of_the_switch_ends_a_job_and_a_rank(running, run):
    hosts = members(running, 2)
    assert run("end", running.address, "test") == (0, f"Job 'test' was ended at the switch at {running.address}.")
    end(hosts)
    assert {host.failure.kind for host in hosts} == {"EndedByOperatorError"}
    assert all("ended job 'test'" in host.failure.message for host in hosts)
    hosts = members(running, 2)
    _, out = run("end", running.address, "test", "--rank", "1", "--reason", "too slow")
    assert out.startswith("Rank 1 was put out of job 'test', epoch")
    end(hosts)
    assert {host.failure.ranks for host in hosts} == {(1,)}
    problem, _ = run("end", running.address, "test")
    assert "doesn't do that: No job 'test' is at the switch" in problem


def test_other_users_may_not(running, run, monkeypatch):
    monkeypatch.setattr(local_operators, "is_trusted", lambda user: False)
    asked = []
    monkeypatch.setattr(local_operators, "name_of", lambda user: asked.append(user) or "user x")
    problem, _ = run("drain", running.address)
    assert "doesn't do that: The operator is the user that runs the switch, or root." in problem
    assert not asked  # of a service of names, which may be slow


@pytest.mark.parametrize("address", ["127.0.0.1:1", "192.0.2.1:7171"])
def test_where_no_switch_of_this_machine_is(run, address):
    problem, _ = run("drain", address)
    assert f"No switch of this machine listens at {address}. Run this on the switch's machine" in problem


def test_what_no_switch_would_understand(running, run):
    problem, _ = run("end", running.address, "test", "--reason", "x" * 501)
    assert "The switch wouldn't understand that: Expected `str` of length <= 500 - at `$.reason`." in problem
    problem, _ = run("drain", "nowhere")
    assert "'nowhere': expected HOST:PORT" in problem


def test_a_switch_that_listens_anywhere_is_found_by_each_address(run):
    switch = SwitchThread(listen=("0.0.0.0", 0))
    port = switch.address.rpartition(":")[2]
    assert run("drain", f"127.0.0.1:{port}")[0] == 0
    switch.stop()


def test_the_screen_of_status_shows_control_characters(running, run):
    run("drain", running.address, "--reason", "\x1b[2Jnew\nkernel")
    assert r"(\x1b[2Jnew\nkernel): it admits no new job." in run("status", running.address)[1]


def impostor(port):
    """Listens at the Unix socket of a switch that would listen at 127.0.0.1, and answers all that it hears."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(local_operators.socket_name("127.0.0.1", port))
    listener.listen()

    def answer():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.recv(1024)
                connection.sendall(messages.encode(messages.Done("\x1b[32mIt drains.\n", 0)))

    threading.Thread(target=answer, daemon=True).start()
    return listener


def test_who_takes_a_socket_that_the_switch_left_free_is_not_believed(run):
    switch = SwitchThread(listen=("0.0.0.0", 0))
    port = int(switch.address.rpartition(":")[2])
    with impostor(port) as listener:
        _, out = run("drain", f"127.0.0.1:{port}")
        listener.shutdown(socket.SHUT_RDWR)
    assert out == f"The switch at 0.0.0.0:{port} drains: it admits no new job. No jobs are left."
    switch.stop()


def test_who_answers_has_the_user_of_the_switch(run, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as switch:
        port = switch.getsockname()[1]
        with impostor(port) as listener:
            assert run("drain", f"127.0.0.1:{port}") == (0, r"\x1b[32mIt drains.\n No jobs are left.")
            user_of = local_operators.user_of
            monkeypatch.setattr(local_operators, "user_of", lambda peer: user_of(peer) + 1)
            problem, _ = run("drain", f"127.0.0.1:{port}")
            listener.shutdown(socket.SHUT_RDWR)
    assert f"No switch of this machine listens at 127.0.0.1:{port}." in problem


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_the_kernel_tells_who_listens(host):
    try:
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    port = listener.getsockname()[1]
    with listener:
        assert local_operators.listening_user(host, port) == os.geteuid()
        assert local_operators.listening_user("127.0.0.2", port) is None
    assert local_operators.listening_user(host, port) is None


def test_keys_open_the_switch_over_the_network(run, tmp_path, monkeypatch):
    of_switch = keys.new_key()
    operator = write_key(tmp_path / "switch.key", keys.SWITCH, of_switch)
    owner = write_key(tmp_path / "job.key", keys.JOB, keys.job_key(of_switch, "test"))
    switch = SwitchThread(key_file=operator)
    hosts = members(switch, 2, key=keys.job_key(of_switch, "test"))
    assert run("drain", switch.address, "--key-file", operator)[0] == 0
    assert run("drain", switch.address, "--undo", "--key-file", operator)[0] == 0
    problem, _ = run("end", switch.address, "other", "--key-file", owner)
    assert "has another key than this one, or none" in problem
    assert run("end", switch.address, "test", "--key-file", owner)[0] == 0
    end(hosts)
    assert "who has the key of job 'test', at 127.0.0.1:" in hosts[0].failure.message
    problem, _ = run("drain", switch.address, "--key-file", owner)
    assert "has the key of a job: say of which one (--job)" in problem
    switch.stop()

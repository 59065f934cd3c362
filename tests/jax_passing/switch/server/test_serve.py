"""The switch process: its settings, its first and last line, and how it ends."""

import contextlib
import errno
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

from jax_passing.errors import ConfigError
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol.packet import LANES_MAX
from jax_passing.switch.server import serve
from jax_passing.switch.server.output import LogHandler, write_line
from jax_passing.switch.server.settings import SwitchSettings, resolve

SWITCH = [sys.executable, "-P", "-m", "jax_passing", "switch"]


@pytest.fixture
def start():
    started = []

    def run(*arguments):
        process = subprocess.Popen(
            [*SWITCH, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def port_of(process):
    line = process.stdout.readline()
    found = re.fullmatch(r"listening on (\S+):(\d+)\n", line)
    assert found, (line, process.stderr.read() if process.poll() is not None else "")
    return int(found[2])


def hello(port, host="127.0.0.1"):
    with socket.create_connection((host, port), timeout=60) as connection, connection.makefile("rb") as lines:
        return messages.decode_from_switch(lines.readline())


# Settings.


def test_flags_win_over_the_file(tmp_path):
    file = tmp_path / "switch.toml"
    file.write_text('listen = "127.0.0.1:5"\nslot_total = 512\nlease_s = 2\nlanes_per_chunk = 64')
    environment = {
        "JAX_PASSING_SWITCH_SLOT_TOTAL": "2048",
        "JAX_PASSING_SWITCH_LANES_PER_CHUNK": "32",
        "JAX_PASSING_SWITCH_MULTICAST": "false",
        "JAX_PASSING_SWITCH_SLOTS_PER_JOB": "256",
        "JAX_PASSING_SWITCH_PARENT": "",
    }
    settings = resolve({"slot_total": 1024, "lease_s": None}, file, environment=environment)
    assert settings == SwitchSettings(
        ("127.0.0.1", 5), slot_total=1024, lanes_per_chunk=32, lease_s=2.0, multicast=False, slots_per_job=256
    )
    assert resolve({}, None, environment={}) == SwitchSettings()


def test_the_file_may_come_from_a_variable(tmp_path):
    file = tmp_path / "switch.toml"
    file.write_text("lease_s = 2")
    assert resolve({}, None, environment={"JAX_PASSING_SWITCH_CONFIG": str(file)}).lease_s == 2.0
    with pytest.raises(ConfigError, match=r"\(variable JAX_PASSING_SWITCH_CONFIG\)"):
        resolve({}, None, environment={"JAX_PASSING_SWITCH_CONFIG": str(tmp_path / "missing.toml")})


def test_a_hosts_variables_and_those_of_kubernetes_are_no_switchs():
    host = {"JAX_PASSING_SWITCH": "10.0.0.1:7171", "JAX_PASSING_LINK_GBIT": "1", "JAX_PASSING_CONFIG": "missing.toml"}
    service = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.2",
        "JAX_PASSING_SWITCH_SERVICE_HOST": "10.0.0.1",
        "JAX_PASSING_SWITCH_PORT_7171_TCP": "tcp://10.0.0.1:7171",
    }
    assert resolve({}, None, environment=host | service) == SwitchSettings()


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        (
            "JAX_PASSING_SWITCH_PORT",
            "7171",
            "Unknown variable .*_SWITCH_PORT. Did you mean JAX_PASSING_SWITCH_PARENT",
        ),
        (
            "JAX_PASSING_SWITCH_LISTEN",
            "here",
            r"'here' of listen \(variable JAX_PASSING_SWITCH_LISTEN\): .*HOST:PORT",
        ),
        ("JAX_PASSING_SWITCH_MULTICAST", "maybe", "expected true or false"),
        ("JAX_PASSING_SWITCH_SLOTS_PER_JOB", "many", "expected a power of two"),
        ("JAX_PASSING_SWITCH_DEVICE", "br0", r"leave it out \(variable JAX_PASSING_SWITCH_DEVICE\)"),
        (
            "JAX_PASSING_SWITCH_SLOT_TOTAL",
            "8",
            r"1024, default\) is above slot_total \(8, variable",
        ),
    ],
)
def test_mistakes_name_the_variable(variable, text, message):
    with pytest.raises(ConfigError, match=message):
        resolve({}, None, environment={variable: text})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slots_total = 1", r"Unknown setting 'slots_total' \(file .*Did you mean slot_total"),
        ('listen = "here"', "HOST:PORT"),
        ("slot_total = 0", r"Bad value 0 of slot_total \(file"),
        ("slot_total = true", "integer from 1"),
        ("slots_per_job = 3", "power of two"),
        ("slots_per_job = true", "power of two"),
        ("slots_per_job = 32768", r"slots_per_job \(32768, file .*\) is above slot_total \(16384, def"),
        ("lanes_per_chunk = 2233", "from 3 to 2232"),
        ("lanes_per_chunk = 2", "from 3 to 2232"),
        ("slot_total = 65537", "from 1 to 65536"),
        ("lease_s = 0", "expected seconds"),
        ("link_gbit = [1]", "expected Gbit/s"),
        ("multicast = 0", "expected true or false"),
        ('data_plane = "tofino"', "expected one of software, ebpf, bmv2"),
        ('data_plane = "ebpf"', r"Data plane ebpf \(file .*\) needs --device: the network"),
        ('data_plane = "ebpf"\ndevice = "br0"\nparent = "10.0.0.1:7171"', "in a tree it can be the root only"),
        ('data_plane = "bmv2"', r"Data plane bmv2 \(file .*\) needs --device"),
        (
            'data_plane = "bmv2"\ndevice = "x"\nslot_total = 16\nlanes_per_chunk = 8',
            r"slot_total \(.*\) and lanes_per_chunk \(file",
        ),
        ('device = "br0"', r"no device: leave it out \(file .*\), or add --data-plane ebpf, bmv2 or p4runtime"),
        ('device = "br0"\ndata_plane = "software"', "no device: leave it out"),
        ("device = 7", "Bad value 7 of device"),
        ("lease_s =", "Can't read the settings file"),
    ],
)
def test_mistakes_name_setting_and_source(tmp_path, text, message):
    file = tmp_path / "switch.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        resolve({}, file)


def test_flags_are_named_too():
    with pytest.raises(ConfigError, match=r"Bad value 5 of slots_per_job \(--slots-per-job\)"):
        resolve({"slots_per_job": 5}, None)


# The process.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_says_where_it_listens_and_ends_cleanly(start, number):
    process = start("--listen", "127.0.0.1:0", "--lanes-per-chunk", str(LANES_MAX), "--quiet")
    port = port_of(process)
    greeting = hello(port)
    told = {"token": greeting.token, "lanes": LANES_MAX, "path_nonce": greeting.path_nonce}
    assert greeting == messages.Hello(messages.PROTOCOL_VERSION, "", port, greeting.instance, **told)
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "so far: idle\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "shut down: idle\n", "")


def test_it_listens_on_ipv6_if_told(start):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    process = start("--listen", "[::1]:0")
    assert isinstance(hello(port_of(process), "::1"), messages.Hello)


def test_a_taken_udp_port_is_an_error_without_a_traceback(start):
    """Packets to another port would meet a firewall, or what has this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        with socket.create_server(("127.0.0.1", 0)) as free:  # TCP's port is, so far
            port = free.getsockname()[1]
            taken.bind(("127.0.0.1", port))
        process = start("--listen", f"127.0.0.1:{port}")
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err == (
        f"jax-passing: Can't take UDP port {port} of 127.0.0.1: {os.strerror(errno.EADDRINUSE)}. Packets go to the "
        "port where hosts connect: end what has it, such as a thread of another switch, or give another one "
        "(--listen).\n"
    )


def test_where_any_port_will_do_another_one_is_tried(monkeypatch):
    """The first ones that the system gives are taken for UDP."""
    taken = []

    def listen(host, port):
        assert port == 0
        listener = socket.create_server((host, 0))
        if len(taken) < 3:
            taken.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            taken[-1].bind(listener.getsockname())
        return listener

    monkeypatch.setattr(serve, "_listen", listen)
    with contextlib.ExitStack() as stack:
        listener, data_plane = serve._open(SwitchSettings(listen=("127.0.0.1", 0)))
        stack.enter_context(listener)
        stack.callback(data_plane.close)
        assert data_plane.port == listener.getsockname()[1]
        assert len(taken) == 3
    for one in taken:
        one.close()


def test_a_taken_tcp_port_is_an_error_without_a_traceback(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start("--listen", f"127.0.0.1:{port}")
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err == (
        f"jax-passing: Can't listen on 127.0.0.1:{port}: {os.strerror(errno.EADDRINUSE)}. "
        "Is another switch running there?\n"
    )


def test_an_address_of_another_machine_isnt_called_taken():
    with pytest.raises(ConfigError, match=r"on 192\.0\.2\.1:7171: .*\. Give an address of this machine\.$"):
        serve._listen("192.0.2.1", 7171)


def test_jobs_go_on_though_its_terminal_is_gone(start):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        process = start("--listen", "127.0.0.1:0", "--quiet")
    finally:
        signal.signal(signal.SIGHUP, before)
    port = port_of(process)
    process.stdout.close()
    process.stdout = None
    for number in (signal.SIGHUP, signal.SIGUSR1):
        process.send_signal(number)
    assert hello(port).data_port == port
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert [line.split("WARNING ")[1] for line in err.splitlines()] == [
        f"standard output doesn't take this: {when}: idle" for when in ("so far", "shut down")
    ]


def test_it_serves_on_while_nobody_reads_its_log(start):
    process = start("--listen", "127.0.0.1:0", "--quiet")
    port = port_of(process)

    def say_nonsense():
        with socket.create_connection(("127.0.0.1", port), timeout=60) as stranger, stranger.makefile("rb") as lines:
            stranger.sendall(b"nonsense\n")
            assert len(lines.readlines()) == 1  # the greeting, and then the end: the log has been written

    full = os.open(f"/proc/{process.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while os.write(full, bytes(4096)):
            pass
    os.close(full)
    say_nonsense()
    say_nonsense()
    assert os.read(process.stderr.fileno(), 1 << 20).count(0)  # all that there is
    say_nonsense()
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert err.count("closing the connection of") == 1
    assert err.endswith("(Before this, 2 could not be written.)\n")


def test_a_terminal_that_nobody_reads_is_not_waited_for():
    reader, writer = os.openpty()
    taken = []
    with os.fdopen(writer, "w") as terminal:
        lines = threading.Thread(target=lambda: taken.extend(write_line(terminal, "x" * 333) for _ in range(1000)))
        lines.start()
        lines.join(20)
        waits = lines.is_alive()
        os.close(reader)  # ends all waits
        lines.join()
    assert not waits
    assert taken[0]
    assert not taken[-1]


def test_a_wrong_statement_that_logs_ends_no_job(capfd):
    LogHandler(sys.stderr).handle(logging.LogRecord("switch", logging.INFO, "f.py", 1, "%d ranks", ("two",), None))
    assert "Message: '%d ranks'" in capfd.readouterr().err


@pytest.mark.parametrize("flags", [(), ("--verbose",), ("--quiet",)])
def test_it_logs_what_jobs_do(start, flags):
    process = start("--listen", "127.0.0.1:0", "--lease-s", "3", *flags)
    port = port_of(process)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection, connection.makefile("rb") as lines:
        assert messages.decode_from_switch(lines.readline()).lease_s == 3.0
        connection.sendall(messages.encode(messages.Join(messages.PROTOCOL_VERSION, "a", 0, 1, ("y",), 9, "x", 5.0)))
        assert isinstance(messages.decode_from_switch(lines.readline()), messages.Welcome)
        connection.sendall(messages.encode(messages.Leave()))
        assert messages.decode_from_switch(lines.readline()) == messages.Bye()
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert out.startswith("shut down: epochs_started 1")
    if flags == ("--quiet",):
        assert err == ""
        return
    banner, *lines = (line.partition(" INFO ")[2] for line in err.splitlines() if " INFO " in line)
    assert banner.startswith("jax-passing ")
    assert banner.endswith(
        f": a switch at 127.0.0.1:{port}; data plane software; 16384 slots of 360 lanes, 1024 a job; "
        "lease 3 s; no key: anybody may join"
    )
    for line, part in zip(
        lines,
        (
            r"job 'a', epoch \d+: rank 0 of 1 joined, at 127.0.0.1",
            r"job 'a', epoch \d+: started with rank 0 at 127.0.0.1; slots from 0, packets of up to "
            "360 lanes, results by unicast",
            r"job 'a', epoch \d+ ended after 0.\d s: all ranks have left",
        ),
        strict=True,
    ):
        assert re.fullmatch(part, line)
    assert ("DEBUG job" in err) == (flags == ("--verbose",))

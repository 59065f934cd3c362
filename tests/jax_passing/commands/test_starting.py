"""`jax-passing run` finds which machines need ssh, where its switch and the coordinator of `jax.distributed` are."""

import socket

import pytest

from jax_passing.commands.launch.starting import COORDINATOR_PORTS, Coordinator, is_here, own_address
from jax_passing.errors import ConfigError

ADDRESS = "JAX_COORDINATOR_ADDRESS"


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    monkeypatch.delenv(ADDRESS, raising=False)


def bind(port, reuse):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse)
        other.bind(("127.0.0.1", port))


def test_a_port_is_kept_for_the_coordinator():
    """gRPC binds it with SO_REUSEPORT; others find it taken."""
    first, second = Coordinator([]), Coordinator([])
    host, _, port = first.variables[ADDRESS].partition(":")
    assert host == "127.0.0.1"
    assert first.variables != second.variables
    bind(int(port), reuse=True)
    with pytest.raises(OSError, match="in use"):
        bind(int(port), reuse=False)
    first.close()
    second.close()
    bind(int(port), reuse=False)


@pytest.mark.parametrize(
    ("machines", "host"),
    [(["me@127.0.0.2", "b"], "127.0.0.2"), (["[::1]"], "[::1]"), (["localhost"], own_address(["localhost"]))],
)
def test_on_other_machines_it_is_where_rank_0_is(machines, host):
    name, _, port = Coordinator(machines).variables[ADDRESS].rpartition(":")
    assert name == host
    assert int(port) in range(*COORDINATOR_PORTS)


def test_a_machine_that_only_ssh_knows_has_no_address(monkeypatch):
    def unknown(*name, **more):
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert Coordinator(["alias", "b"]).variables == {}


def test_the_users_address_stays(monkeypatch):
    monkeypatch.setenv(ADDRESS, "node0:1")
    assert Coordinator([]).variables == Coordinator(["localhost"]).variables == {}


@pytest.mark.parametrize(
    ("machine", "here"), [("127.0.0.1", True), ("[::1]", True), ("me@127.0.0.1", False), ("192.0.2.1", False)]
)
def test_this_machine_needs_no_ssh(machine, here):
    assert is_here(machine) is here


def test_an_address_that_only_this_machine_reaches_serves_nobody_else(monkeypatch):
    """On Debian a machine's own name means a loopback address to itself."""
    known = {"me": "127.0.1.1"}

    def look_up(name, port, **more):
        if name not in known:
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", (known[name], port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert own_address(["me"]).startswith("127.")
    with pytest.raises(ConfigError, match=r"me, other can reach.*--switch"):
        own_address(["me", "other"])

"""`jax-passing run` tells its ranks where the coordinator of `jax.distributed` is."""

import socket

import pytest

from jax_passing.commands.launch.starting import COORDINATOR_PORTS, Coordinator

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
    [(["me@127.0.0.2", "b"], "127.0.0.2"), (["[::1]", "b"], "[::1]"), (["localhost"], "localhost")],
)
def test_on_other_machines_it_is_where_rank_0_is(machines, host):
    name, _, port = Coordinator(machines).variables[ADDRESS].rpartition(":")
    assert name == host
    assert int(port) in range(*COORDINATOR_PORTS)


def test_a_machine_that_only_ssh_knows_has_no_address(monkeypatch):
    def unknown(*name):
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert Coordinator(["alias", "b"]).variables == {}


def test_the_users_address_stays(monkeypatch):
    monkeypatch.setenv(ADDRESS, "node0:1")
    assert Coordinator([]).variables == Coordinator(["localhost"]).variables == {}

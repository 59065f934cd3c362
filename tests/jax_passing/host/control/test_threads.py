"""Hosts and switches with several threads, in this process: what they settle on, and one job on all planes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_passing
from jax_passing import threads
from jax_passing.config import resolve
from jax_passing.errors import ConfigError
from jax_passing.host.control import epoch_transport
from jax_passing.protocol import control_messages as messages
from jax_passing.protocol import keys, plane_sockets
from jax_passing.switch.data_planes import software
from jax_passing.switch.server import serve
from jax_passing.switch.server.settings import resolve as resolve_switch
from support.jax.sessions import total
from support.switch.control import scenario
from support.switch.in_process import SwitchThread, leave, members

SIZES = (1001, 300_001)


@pytest.fixture
def switch():
    started = []

    def start(**changes):
        started.append(SwitchThread(**changes))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def completed(monkeypatch):
    """Returns how many chunks each plane has completed, of the switches that have ended."""
    counts = []
    true = software.SoftwareDataPlane.close

    def close(plane):
        counts.append([native.stats()["complete"] for native in plane._natives])
        true(plane)

    monkeypatch.setattr(software.SoftwareDataPlane, "close", close)
    return counts


def sums(address, **settings):
    """Returns those of one host through these switches, and what it counted."""
    with jax_passing.init(address, rank=0, world_size=1, **settings) as session:
        found = [np.asarray(total(jax.random.normal(jax.random.key(size), (2, size)))) for size in SIZES]
        return found, session.stats()


@pytest.mark.parametrize("hosts_threads", [1, 2])
def test_bits_are_those_of_one_thread(switch, completed, hosts_threads):
    expected, of_one = sums(switch().address, threads=1)
    several = switch(threads=4)
    found, of_several = sums(several.address, threads=hosts_threads)
    assert all((one == other).all() for one, other in zip(expected, found, strict=True))
    for name in ("sums_started", "sums_completed", "tensor_bytes"):
        assert of_several[name] == of_one[name]
    several.stop()
    (planes,) = completed
    assert len(planes) == 4
    assert min(planes) > 15  # packets of up to 2,232 lanes


def test_several_switches_are_planes_as_well(switch, completed):
    expected, _ = sums(switch().address, threads=1)
    each = [switch(threads=2), switch(threads=1)]
    found, _ = sums(",".join(one.address for one in each), threads=2)
    assert all((one == other).all() for one, other in zip(expected, found, strict=True))
    for one in each:
        one.stop()
    assert completed[0][1] == 0  # the other switch has no second plane
    assert min(completed[0][0], completed[1][0]) > 15  # packets of up to 2,232 lanes


@pytest.mark.parametrize("settings", [{"hosts_key_file": True}, {"check_sums": True}])
def test_keys_of_threads_and_planes(switch, completed, tmp_path, settings):
    key_file, switch_key = tmp_path / "job.key", keys.new_key()
    key_file.write_text(keys.key_line(keys.JOB, keys.job_key(switch_key, "a")))
    key_file.chmod(0o600)
    (tmp_path / "switch.key").write_text(keys.key_line(keys.SWITCH, switch_key))
    (tmp_path / "hosts.key").write_text(keys.key_line(keys.HOSTS, keys.new_key()))
    for name in ("switch.key", "hosts.key"):
        (tmp_path / name).chmod(0o600)
    if "hosts_key_file" in settings:
        settings = {"hosts_key_file": tmp_path / "hosts.key"}
    expected, _ = sums(switch().address, threads=1)
    several = switch(threads=2, key_file=tmp_path / "switch.key")
    found, counted = sums(several.address, threads=2, job="a", key_file=key_file, **settings)
    assert all((one == other).all() for one, other in zip(expected, found, strict=True))
    assert counted["sums_wrong"] == counted["packets_forged"] == 0
    several.stop()
    assert min(completed[-1]) > 15  # packets of up to 2,232 lanes


def test_a_job_settles_on_the_least(switch):
    running = switch(threads=4)
    both = members(running, threads=2)
    assert {(each.welcomes[0].planes, each.welcomes[0].threads) for each in both} == {(4, 2)}
    leave(both)


@scenario(planes=4)
async def test_of_all_hosts_and_switches(switch):
    for rank, (planes, wanted) in enumerate([(4, 4), (2, 2), (4, 4)]):
        await switch.join(rank, 3, planes=planes, threads=wanted)
    await switch.has(0, 1, 2)
    (job,) = switch.data_plane.running.values()
    assert job.planes == 2
    assert job.slot_count == 64  # of 256, at one plane of the switch
    welcomes = [await host.receive() for host in switch.hosts]
    assert {(welcome.planes, welcome.threads, welcome.slot_count) for welcome in welcomes} == {(2, 2, 64)}
    (status,) = switch.plane.report.answer(messages.StatusQuery(messages.PROTOCOL_VERSION), None).document["jobs"]
    assert (status["planes"], status["threads"], status["slots"]) == (2, 2, 128)


@scenario(planes=8)
async def test_planes_of_many_switches_can_be_dealt_to_threads(switch):
    switches = tuple(f"switch {number}" for number in range(9))
    for rank in range(2):
        await switch.join(rank, 2, switches=switches, planes=8, threads=8)
    for host in switch.hosts:
        welcome = await host.receive()
        assert (welcome.planes, welcome.threads) == (4, 4)  # with seven, one thread would have all 63 shards


@scenario(planes=2)
async def test_a_question_is_for_one_plane(switch):
    asked = []
    held, switch.data_plane.slot_version = switch.data_plane.held, lambda *what: asked.append(what) or held
    hosts, welcome = await switch.job(planes=2)
    hosts[0].send(messages.Query(welcome.slot_first + 3, 1, plane=1))
    assert (await hosts[0].receive()).missing == (1,)
    assert set(asked) == {(welcome.slot_first + 3, 1, 1)}
    hosts[0].send(messages.Query(welcome.slot_first, plane=2))
    assert isinstance(await hosts[0].receive(), messages.Failed)  # it has no such plane


class Outside:
    def start_transport(self, links, events, **settings):
        return settings


@pytest.mark.parametrize(
    ("switches", "planes", "wanted", "expected"),
    [(1, 1, 4, 1), (1, 4, 2, 2), (1, 2, 4, 2), (3, 1, 2, 1), (3, 2, 4, 2), (4, 1, 2, 2), (8, 2, 16, 16)],
)
def test_each_thread_has_as_many_shards(monkeypatch, switches, planes, wanted, expected):
    monkeypatch.setattr(epoch_transport, "check_key", lambda *_: b"c" * 16)
    monkeypatch.setattr(epoch_transport, "mask_key", lambda *_: b"m" * 16)

    class Context:
        settings, job, outside = resolve({}, environment={})[0], "a", Outside()

    class Shard:
        name, welcome = "a:1", messages.Welcome(1, 7, 0, 256, 0, 360, ranks_at_port=8, planes=planes, threads=wanted)

    settings = epoch_transport.start(Context, [Shard] * switches, None, b"")
    assert (settings["planes"], settings["threads"]) == (planes, expected)
    assert settings["slots_per_shard"] * switches <= 256
    assert settings["ranks_at_port"] == max(1, 8 * expected // switches)
    used = [*settings["check_keys"], *settings["mask_keys"]]
    assert len(set(used)) == len(used) == 2 * expected


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (7, 1), (8, 2), (15, 2), (16, 4), (64, 8), (256, 8)])
def test_the_default_follows_the_machine(monkeypatch, cores, expected):
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: set(range(cores)))
    assert threads.default_threads() == expected


@pytest.mark.parametrize("wrong", [0, 3, 32, "two", -1])
def test_a_number_of_threads_is_a_power_of_two(wrong):
    with pytest.raises(ConfigError, match=r"threads.*1, 2, 4, 8 or 16"):
        resolve({"threads": wrong}, environment={})
    with pytest.raises(ConfigError, match=r"threads.*1, 2, 4, 8 or 16"):
        resolve_switch({"threads": wrong}, None, environment={})
    assert resolve({"threads": "4"}, environment={})[0].threads == 4


def test_threads_that_a_switch_cant_have():
    with pytest.raises(ConfigError, match="--data-plane.* has no threads .--threads"):
        resolve_switch({"threads": 2, "data_plane": "bmv2", "device": "a.toml"}, None, environment={})
    with pytest.raises(ConfigError, match=r"threads .8, --threads. is above slots_per_job .4"):
        resolve_switch({"threads": 8, "slots_per_job": 4}, None, environment={})


def test_ports_that_others_have(switch, monkeypatch, caplog):
    other = switch()
    taken = int(other.address.rpartition(":")[2])
    with pytest.raises(OSError, match="bind"):
        software.SoftwareDataPlane("127.0.0.1", taken - 1, slot_total=16, lanes_per_chunk=360, threads=2)
    monkeypatch.setattr(serve, "default_threads", lambda: 4)
    with caplog.at_level("WARNING", "jax_passing.switch"):
        fewer = switch(listen=("127.0.0.1", taken - 1))  # by itself
    assert "1 in place of 4 threads add up, as not all following ports are free" in caplog.text
    both = members(fewer, threads=2)
    assert both[0].welcomes[0].planes == 1
    leave(both)


def test_no_port_follows_the_last():
    with pytest.raises(OSError, match="2 ports from 65535 on would end above 65535"):
        plane_sockets.PlaneSockets("127.0.0.1", 65535, 2)
    assert list(plane_sockets.following_ports(65534, 2)) == [65535]


def test_all_of_jax_runs_with_two_threads(switch):
    running = switch(threads=2)
    with jax_passing.init(running.address, rank=0, world_size=1, threads=2, wire_dtype="int8", seed=3):
        x = jax.random.normal(jax.random.key(0), (2, 200_000))
        error = jnp.abs(total(x)[0] - x.sum(0)).max()
        assert 0 < error < 0.2

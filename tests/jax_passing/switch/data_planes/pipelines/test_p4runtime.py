"""The control plane speaks P4Runtime over gRPC to a server in this process."""

import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest
from msgspec import structs

from jax_passing.protocol.verdicts import VERDICTS
from jax_passing.switch.data_planes.data_plane import JobSlots
from jax_passing.switch.data_planes.device import Device, Neighbour
from jax_passing.switch.data_planes.p4 import P4DataPlane
from jax_passing.switch.data_planes.pipeline import DeviceError, Entry, UnreadableError
from jax_passing.switch.data_planes.pipelines.p4runtime import P4Runtime
from jax_passing.switch.data_planes.pipelines.protobuf import data, decode, encode, messages, number

grpc = pytest.importorskip("grpc", reason="no grpcio")
from support.p4.p4runtime_server import PAIRS, WIDE, Server, p4info  # noqa: E402


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """The server shares its process with the test, which may be stopped for a while."""
    monkeypatch.setattr("jax_passing.switch.data_planes.pipelines.p4runtime.TIMEOUT_S", 20.0)


@pytest.fixture
def server():
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def device(server, tmp_path):
    (tmp_path / "p4info").write_bytes(p4info())
    (tmp_path / "program").write_bytes(b"the program")
    return Device(
        runtime=f"127.0.0.1:{server.port}",
        address="10.0.0.254",
        mac="02:00:00:00:00:fe",
        ports=(0, 1),
        neighbours=tuple(Neighbour(f"10.0.0.{n}", f"02:00:00:00:00:0{n}", n - 1) for n in (1, 2)),
        device_id=3,
        program=str(tmp_path / "program"),
        p4info=str(tmp_path / "p4info"),
        lanes=64,
    )


@pytest.fixture
def pipeline(device):
    pipeline = P4Runtime(device)
    yield pipeline
    pipeline.close()


JOB = JobSlots(7, 3, 8, 4, (("10.0.0.1", 1001), ("10.0.0.2", 1002)), reach=9)


def test_the_program_is_loaded_and_a_job_comes_and_goes(server, device, pipeline):
    plane = P4DataPlane(device, pipeline)
    assert (data(server.config, 1), data(server.config, 2)) == (p4info(), b"the program")
    assert (plane.lanes_per_chunk, plane.slot_total) == (64, 32)
    assert server.groups == {1: [(0, 0), (1, 0)]}
    before = dict(server.entries)
    assert len(before) == 3
    plane.add_job(JOB)
    assert len(server.entries) == 3 + 5
    (job,) = (action for (table, _), action in server.entries.items() if table == 3)
    call = decode(data(decode(job), 1))
    assert number(call, 1) == 102
    values = {number(part, 2): int.from_bytes(data(part, 3), "big") for part in messages(call, 4)}
    assert {at: values[at] for at in (1, 3, 4, 5, 6, 7)} == {1: 3, 3: 8, 4: 4, 5: 0b11, 6: 2, 7: 9}
    assert server.groups[2] == [(0, 0), (1, 1)]
    assert plane.check() == ""
    assert plane.stats() == dict(zip(VERDICTS, range(0, 170, 10), strict=True))
    plane.remove_job(7)
    assert (server.entries, list(server.groups)) == (before, [1])


def test_slots_where_the_server_reads_registers_and_where_it_does_not(server, device, pipeline):
    plane = P4DataPlane(device, pipeline)
    plane.add_job(JOB)
    owner = plane._jobs[7].owner
    server.registers = {(300, 17): owner, (301, 17): 99, (302, 17): 2, (303, 17): 0}
    held = plane.slot_version(8, 1)
    assert (held.empty, held.sequence, held.bitmap, held.complete) == (False, 99, 2, False)
    server.registers = {}
    assert plane.slot_version(8, 1) is None
    with pytest.raises(UnreadableError, match="UNIMPLEMENTED no registers here"):
        pipeline.register("slot_check.owner", 17)


def test_a_host_that_is_not_listed_where_the_server_does_not_read_registers(server, device, pipeline):
    plane = P4DataPlane(device, pipeline)
    before = dict(server.entries)
    with pytest.raises(DeviceError, match=r"can't tell where 10.0.0.3 is, so it must be listed among the neighbours"):
        plane.add_job(replace(JOB, addresses=(*JOB.addresses, ("10.0.0.3", 1003))))
    assert server.entries == before
    plane.add_job(JOB)  # served as before


class _Stuck:
    """A call whose iteration outlives its end."""

    def __init__(self):
        self.cancelled = threading.Event()

    def __iter__(self):
        self.cancelled.wait(10)
        yield from ()

    def cancel(self):
        self.cancelled.set()

    def code(self):
        assert self.cancelled.is_set()
        return grpc.StatusCode.UNAVAILABLE

    def details(self):
        return "gone"


def test_a_call_that_does_not_end_is_given_up(pipeline, monkeypatch):
    call = _Stuck()
    monkeypatch.setattr("jax_passing.switch.data_planes.pipelines.p4runtime.TIMEOUT_S", 0.05)
    monkeypatch.setattr("jax_passing.switch.data_planes.pipelines.p4runtime.STUCK_S", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline._channel, "unary_stream", lambda method: lambda request, timeout: call)
        with pytest.raises(DeviceError, match="Read: UNAVAILABLE gone"):
            pipeline.entry_count("own_address")


@pytest.mark.slow
def test_a_server_that_lost_its_tables_and_one_that_is_gone(server, device, pipeline, monkeypatch):
    monkeypatch.setattr("jax_passing.switch.data_planes.p4.CHECK_S", 0.0)
    plane = P4DataPlane(device, pipeline)
    plane.add_job(JOB)
    server.entries, server.groups = {}, {}
    assert "it was restarted" in plane.check()
    plane.add_job(JOB)
    server.stop()
    assert "UNAVAILABLE" in plane.check()
    with pytest.raises(DeviceError, match="UNAVAILABLE"):
        plane.add_job(JOB)


def test_another_controller(server, device, pipeline):
    server.refuses = True
    with pytest.raises(DeviceError, match="has another controller: another one"):
        pipeline.attach()


def test_another_controller_that_comes_later(server, device, pipeline, monkeypatch):
    monkeypatch.setattr("jax_passing.switch.data_planes.p4.CHECK_S", 0.0)
    plane = P4DataPlane(device, pipeline)
    plane.add_job(JOB)
    server.refuses = True
    pipeline._requests.put(encode((1, encode((1, 3), (3, pipeline._election)))))  # the answer is that of a loser
    until = time.monotonic() + 10
    while pipeline._answers.empty() and time.monotonic() < until:
        time.sleep(0.01)
    plane.stats()  # hears it first, and has no error for anybody
    assert "has another controller: another one" in plane.check()
    assert plane.check() == ""  # told once; it is tried again


def test_what_the_server_refuses_is_told(server, device, pipeline):
    plane = P4DataPlane(device, pipeline)
    server.elected = b"x"
    with pytest.raises(DeviceError, match="Write: PERMISSION_DENIED not the controller"):
        plane.add_job(JOB)


def test_a_group_that_the_server_refuses_costs_no_other_job(server, device, pipeline, monkeypatch):
    monkeypatch.setattr("jax_passing.switch.data_planes.p4.CHECK_S", 0.0)
    plane = P4DataPlane(device, pipeline)
    plane.add_job(JOB)
    server.is_full = True
    before = dict(server.entries), dict(server.groups)
    other = replace(JOB, job=8, slot_first=16)
    with pytest.raises(DeviceError, match="Write: RESOURCE_EXHAUSTED no room"):
        plane.add_job(other)
    assert (server.entries, server.groups) == before
    assert plane.check() == ""
    server.is_full = False
    plane.add_job(other)


def test_a_group_whose_insertion_was_not_answered_is_replaced(server, device, pipeline, monkeypatch):
    monkeypatch.setattr("jax_passing.switch.data_planes.p4.CHECK_S", 0.0)
    plane = P4DataPlane(device, pipeline)
    server.is_mute = True
    with pytest.raises(DeviceError, match="Write: DEADLINE_EXCEEDED too late"):
        plane.add_job(replace(JOB, addresses=JOB.addresses[:1]))
    assert server.groups[2] == [(0, 0)]
    server.is_mute = False
    plane.add_job(JOB)
    assert server.groups[2] == [(0, 0), (1, 1)]
    plane.remove_job(7)
    assert list(server.groups) == [1]
    assert plane.check() == ""


def test_groups_of_an_earlier_controller_are_deleted(server, device, pipeline):
    P4DataPlane(device, pipeline).add_job(JOB)
    later = P4Runtime(device)
    P4DataPlane(device, later)
    assert list(server.groups) == [1]  # with more than this in it, what is flooded would come several times
    later.close()


def test_later_controllers_have_higher_elections(device):
    first, second = (number(decode(P4Runtime(device)._election), 1) for _ in range(2))
    assert 0 < first < second < 1 << 63


def test_a_device_file_that_lacks_something(device, tmp_path):
    for changes, message in (
        ({"lanes": None}, "has no program, p4info or lanes"),
        ({"p4info": str(tmp_path / "x")}, "can't read the binary P4Info"),
        ({"program": str(tmp_path / "x")}, "can't read the program"),
    ):
        with pytest.raises(DeviceError, match=message):
            P4Runtime(structs.replace(device, **changes))
    (tmp_path / "p4info").write_bytes(b"tables {")
    with pytest.raises(DeviceError, match="can't read the binary P4Info"):
        P4Runtime(device)


@pytest.mark.parametrize("lanes", [WIDE, PAIRS], ids=["v1model", "Tofino"])
def test_other_lanes_than_the_program_has(device, tmp_path, lanes):
    (tmp_path / "p4info").write_bytes(p4info(lanes))
    P4Runtime(device).close()
    with pytest.raises(DeviceError, match=r"have 32 lanes, but the program has 64.*: set lanes = 64"):
        P4Runtime(structs.replace(device, lanes=32))
    (tmp_path / "p4info").write_bytes(p4info([]))  # a Tofino's own form doesn't tell
    P4Runtime(structs.replace(device, lanes=32)).close()


def test_a_program_that_knows_no_packets_without_lanes_is_too_old(server, device, tmp_path):
    (tmp_path / "p4info").write_bytes(p4info(WIDE[1:]))
    with closing(P4Runtime(device)) as pipeline, pytest.raises(DeviceError, match=r"0 registers named lanes\.bare"):
        P4DataPlane(device, pipeline)


def test_a_ternary_row_says_what_counts(server, pipeline):
    pipeline.attach()
    masks = {"ip": 0xFFFFFFFF, "slot": 0xFFFFFFF8}  # of 16 bits the upper 13
    row = Entry("rows", {"ip": 0x0A000001, "slot": 16}, "to_port", {"port": 1}, masks, priority=7)
    pipeline.insert(row)
    ((table, match),) = server.entries
    assert table == 6
    ip = encode((1, 3), (3, encode((1, b"\x0a\0\0\1"), (2, b"\xff\xff\xff\xff"))))
    slot = encode((1, 2), (3, encode((1, b"\x10"), (2, b"\xff\xf8"))))
    assert match == ip + slot
    assert server.priorities == [7]
    pipeline.delete(row)
    assert not server.entries
    assert server.priorities == [7, 7]
    assert pipeline.has_table("rows")
    assert not pipeline.has_table("row")

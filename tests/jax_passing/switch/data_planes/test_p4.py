"""The P4 program's tables are filled, on a device that keeps them in memory and may be lost at any time."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from jax_passing.protocol.verdicts import VERDICTS
from jax_passing.switch.data_planes import p4
from jax_passing.switch.data_planes.data_plane import JobSlots, Parent, SlotVersion
from jax_passing.switch.data_planes.device import Device, Neighbour
from jax_passing.switch.data_planes.pipeline import DeviceError
from support.p4.device_in_memory import DeviceInMemory

MAC = 0x020000000000


DEVICE = Device(
    runtime="127.0.0.1:9090",
    address="10.0.0.254",
    mac="02:00:00:00:00:fe",
    ports=(0, 1, 2),
    neighbours=(Neighbour("10.0.0.1", "02:00:00:00:00:01", 0),),
)
JOB = JobSlots(7, 3, 8, 4, (("10.0.0.1", 1001), ("10.0.0.2", 1002)), reach=9)


@pytest.fixture
def device():
    memory = DeviceInMemory()
    for what, value in (("ip", 0x0A000002), ("mac", MAC + 2), ("port", 1)):  # it has seen the second host
        memory.registers[f"neighbours.{what}", 2] = value
    return memory


@pytest.fixture
def data_plane(device, monkeypatch):
    monkeypatch.setattr(p4, "CHECK_S", 0.0)
    monkeypatch.setattr(p4, "CHECK_AGAIN_S", 0.0)
    return p4.P4DataPlane(DEVICE, device)


def test_what_it_is(data_plane, device):
    assert (data_plane.host, data_plane.port) == ("10.0.0.254", 7171)
    assert (data_plane.lanes_per_chunk, data_plane.whole_chunks, data_plane.slot_total) == (64, True, 32)
    assert data_plane.group(7, "10.0.0.253") is None
    assert device.tables == {
        "own_address": {(0x0A0000FE,): ("set_own_mac", {"mac": MAC + 0xFE})},
        "forward": {(MAC + 1,): ("to_port", {"port": 0})},
    }
    assert device.groups == {1: [(0, 0), (1, 0), (2, 0)]}
    assert data_plane.check() == ""


def test_hosts_behind_one_router_share_its_row(device):
    behind = tuple(Neighbour(f"10.1.0.{host}", "02:00:00:00:00:09", 2) for host in (1, 2))
    p4.P4DataPlane(structs.replace(DEVICE, neighbours=behind), device)
    assert device.tables["forward"] == {(MAC + 9,): ("to_port", {"port": 2})}


def test_a_job_comes_and_goes_without_a_trace(data_plane, device):
    before = {name: dict(rows) for name, rows in device.tables.items()}
    data_plane.add_job(JOB)
    owner = device.tables["job"][7,][1].pop("owner")
    assert 0 < owner < 1 << 32
    share = {"epoch": 3, "slot_first": 8, "slot_count": 4, "workers": 0b11, "group": 2, "reach": 9}
    assert device.tables["job"] == {(7,): ("set_job", share)}
    assert device.tables["worker"] == {
        (7, 0): ("set_worker", {"worker_bit": 1, "ip": 0x0A000001, "udp_port": 1001}),
        (7, 1): ("set_worker", {"worker_bit": 2, "ip": 0x0A000002, "udp_port": 1002}),
    }
    assert device.tables["receiver"] == {
        (7, 0): ("to_worker", {"mac": MAC + 1, "ip": 0x0A000001, "udp_port": 1001}),
        (7, 1): ("to_worker", {"mac": MAC + 2, "ip": 0x0A000002, "udp_port": 1002}),
    }
    assert device.groups[2] == [(0, 0), (1, 1)]
    data_plane.remove_job(7)
    assert {name: rows for name, rows in device.tables.items() if rows} == before
    assert list(device.groups) == [1]
    data_plane.remove_job(7)  # nothing


def test_every_use_of_the_slots_has_an_owner_of_its_own(data_plane, device):
    seen = set()
    for _ in range(3):
        data_plane.add_job(JOB)
        seen.add(device.tables["job"][7,][1]["owner"])
        data_plane.remove_job(7)
    data_plane._owner = p4.OWNER_MAX
    data_plane.add_job(JOB)
    seen.add(device.tables["job"][7,][1]["owner"])
    assert len(seen) == 4
    assert 0 not in seen


def test_a_job_with_a_parent(data_plane, device):
    parent = Parent(job=9, epoch=5, slot_first=16, worker=1, address=("10.0.0.2", 7171))
    data_plane.add_job(JobSlots(7, 3, 8, 4, (("10.0.0.1", 1001),), parent=parent))
    assert device.tables["parent_job"] == {(9,): ("set_own_job", {"job": 7})}
    route = {"mac": MAC + 2, "ip": 0x0A000002, "udp_port": 7171, "port": 1}
    assert device.tables["parent"] == {
        (7,): ("set_parent", {"job": 9, "epoch": 5, "worker": 1, "slot_first": 16} | route)
    }
    owner = device.tables["job"][7,][1]["owner"]
    device.registers |= {("slot_check.owner", 16): owner, ("slot_check.bitmap_low", 16): 1}
    assert not data_plane.slot_version(8, 0).complete
    device.registers["slot_check.answered", 16] = 1
    assert data_plane.slot_version(8, 0).complete


def test_what_a_slot_version_holds(data_plane, device):
    empty = SlotVersion(empty=True, sequence=0, bitmap=0, complete=False)
    assert data_plane.slot_version(9, 1) == empty  # no job's
    data_plane.add_job(JOB)
    device.registers |= {("slot_check.sequence", 19): 77, ("slot_check.bitmap_low", 19): 0b10}
    assert data_plane.slot_version(9, 1) == empty  # an earlier job's
    device.registers["slot_check.owner", 19] = device.tables["job"][7,][1]["owner"]
    assert data_plane.slot_version(9, 1) == SlotVersion(empty=False, sequence=77, bitmap=0b10, complete=False)
    device.registers["slot_check.bitmap_low", 19] = 0b11
    assert data_plane.slot_version(9, 1).complete


def test_a_host_that_the_device_never_saw(data_plane, device):
    tables = {name: dict(rows) for name, rows in device.tables.items()}
    with pytest.raises(DeviceError, match="has seen no packet of 10.0.0.3"):
        data_plane.add_job(JobSlots(7, 3, 8, 4, (("10.0.0.1", 1001), ("10.0.0.3", 1003))))
    assert device.tables == tables
    assert data_plane.check() == ""
    data_plane.add_job(JOB)


def test_a_restart_is_told_once_and_jobs_can_be_added_again(data_plane, device):
    data_plane.add_job(JOB)
    own = device.tables["own_address"]
    learned = device.registers
    device.restart()
    assert "it was restarted" in data_plane.check()
    assert device.tables["own_address"] == own
    assert data_plane.check() == ""
    data_plane.remove_job(7)  # gone already
    device.registers = learned
    data_plane.add_job(JOB)


def test_a_restart_without_jobs_is_nobodys_loss(data_plane, device):
    device.restart()
    assert data_plane.check() == ""
    assert device.tables["own_address"]


@pytest.mark.parametrize("change", [{"lanes": 8}, {"register_cells": 32}], ids=str)
def test_a_restart_with_another_build_is_no_replacement(data_plane, device, change):
    data_plane.add_job(JOB)
    first = {name: getattr(device, name) for name in change}
    learned = device.registers
    device.restart()
    vars(device).update(change)
    assert "it was restarted" in data_plane.check()
    assert data_plane.check() == ""
    with pytest.raises(DeviceError, match="runs another build of the program, with"):
        data_plane.add_job(JOB)
    assert (data_plane.lanes_per_chunk, data_plane.slot_total) == (64, 32)
    vars(device).update(first)
    device.registers = learned
    assert data_plane.check() == ""
    data_plane.add_job(JOB)


def test_a_program_of_another_version_is_no_replacement(data_plane, device):
    data_plane.add_job(JOB)
    device.restart()
    device.verdicts.pop()
    assert "it was restarted" in data_plane.check()
    with pytest.raises(DeviceError, match=rf"it counts {len(VERDICTS) - 1} verdicts instead of {len(VERDICTS)}"):
        data_plane.add_job(JOB)


def test_an_outage(data_plane, device):
    data_plane.add_job(JOB)
    device.verdicts = list(range(len(VERDICTS)))
    assert data_plane.stats()["answered"] == 16
    device.refuses_after = 0
    assert data_plane.trouble() == ""
    assert data_plane.check() == "it is off"
    assert data_plane.check() == ""
    assert data_plane.trouble() == "it is off"
    assert data_plane.stats()["answered"] == 16
    with pytest.raises(DeviceError, match="was lost: it is off"):
        data_plane.add_job(JOB)
    device.refuses_after = None
    assert data_plane.check() == ""
    assert data_plane.trouble() == ""
    data_plane.add_job(JOB)
    assert data_plane.check() == ""


def test_another_control_plane_keeps_what_it_took(data_plane, device):
    data_plane.add_job(JOB)
    device.taken = "it has another one"
    before = copy.deepcopy((device.tables, device.groups))
    with pytest.raises(DeviceError, match="it has another one"):
        data_plane.add_job(replace(JOB, job=8, slot_first=16))
    assert data_plane.check() == "it has another one"
    assert data_plane.check() == ""
    with pytest.raises(DeviceError, match="was lost: it has another one"):
        data_plane.add_job(JOB)
    assert (device.tables, device.groups) == before
    device.taken = ""
    assert data_plane.check() == ""
    data_plane.add_job(JOB)
    device.taken = "it has another one"
    before = copy.deepcopy((device.tables, device.groups))
    with pytest.raises(DeviceError, match="it has another one"):
        data_plane.remove_job(7)
    assert (device.tables, device.groups) == before


def test_what_another_control_planes_packets_count_is_not_told(data_plane, device):
    device.verdicts = list(range(len(VERDICTS)))
    assert data_plane.stats()["answered"] == 16
    device.verdicts = [99] * len(VERDICTS)
    device.taken = "it has another one"
    assert data_plane.stats()["answered"] == 16
    data_plane.check()
    assert data_plane.stats()["answered"] == 16
    device.taken = ""
    assert data_plane.stats()["answered"] == 16  # not yet served again
    data_plane.check()
    assert data_plane.stats()["answered"] == 99


@pytest.mark.parametrize("calls", range(3, 9))  # a join takes nine, of which three read
def test_a_join_that_fails_halfway_costs_the_other_jobs_but_no_later_one(data_plane, device, calls):
    other = JobSlots(8, 1, 16, 4, JOB.addresses)
    data_plane.add_job(other)
    device.refuses_after = calls
    with pytest.raises(DeviceError, match="it is off"):
        data_plane.add_job(JOB)
    with pytest.raises(DeviceError, match="was lost: it is off"):
        data_plane.add_job(JOB)
    device.refuses_after = None
    assert data_plane.check() == "it is off"
    for job in (JOB, other):
        data_plane.add_job(job)
    assert data_plane.check() == ""


@pytest.mark.parametrize("error", [DeviceError("table full"), OverflowError("too big")], ids=repr)
@pytest.mark.parametrize("where", ["group", "receiver", "worker", "parent", "job"])
def test_a_job_that_is_refused_leaves_nothing_and_others_run(data_plane, device, where, error):
    other = JobSlots(8, 1, 16, 4, JOB.addresses)
    data_plane.add_job(other)
    before = copy.deepcopy((device.tables, device.groups))
    parent = Parent(job=9, epoch=5, slot_first=16, worker=1, address=("10.0.0.2", 7171))
    job = replace(JOB, parent=parent)
    for _ in range(2):  # and it may be tried again
        device.refused = {where: error}
        with pytest.raises(type(error), match=str(error)):
            data_plane.add_job(job)
        assert {name: rows for name, rows in device.tables.items() if rows} == before[0]
        assert device.groups == before[1]
    data_plane.remove_job(7)  # nothing
    data_plane.add_job(job)
    assert data_plane.check() == ""


def test_a_row_that_is_there_though_its_insertion_failed(data_plane, device):
    data_plane.add_job(JobSlots(8, 1, 16, 4, JOB.addresses))
    device.tables["job"][7,] = ("set_job", {})
    device.refused = {"job": DeviceError("no answer")}
    with pytest.raises(DeviceError, match="no answer"):
        data_plane.add_job(JOB)
    assert data_plane.check() == "its table job has 2 rows instead of 1"
    data_plane.add_job(JOB)


def test_more_jobs_than_the_tables_hold(data_plane, device, monkeypatch):
    source = Path(__file__).parents[4] / "p4" / "types.p4"
    assert f"#define JOBS_MAX {p4.JOBS_MAX}\n" in source.read_text()
    monkeypatch.setattr(p4, "JOBS_MAX", 2)
    for number in (1, 2):
        data_plane.add_job(replace(JOB, job=number, slot_first=4 * number))
    before = copy.deepcopy((device.tables, device.groups))
    with pytest.raises(DeviceError, match="its tables have room for 2 jobs, which are running"):
        data_plane.add_job(replace(JOB, job=3, slot_first=12))
    assert (device.tables, device.groups) == before
    assert data_plane.check() == ""
    data_plane.remove_job(1)
    data_plane.add_job(replace(JOB, job=3, slot_first=12))


@pytest.mark.parametrize("calls", range(6))
def test_a_removal_that_fails_halfway_likewise(data_plane, device, calls):
    other = JobSlots(8, 1, 16, 4, JOB.addresses)
    for job in (JOB, other):
        data_plane.add_job(job)
    device.refuses_after = calls
    with pytest.raises(DeviceError, match="it is off"):
        data_plane.remove_job(7)
    data_plane.remove_job(7)
    device.refuses_after = None
    assert data_plane.check() == "it is off"
    for job in (JOB, other):
        data_plane.add_job(job)

"""A Tofino's tables are told of a job, and its registers tell of its slots."""

import pytest

from jax_passing.protocol.verdicts import VERDICTS
from jax_passing.switch.data_planes import tofino_admission
from jax_passing.switch.data_planes.data_plane import JobSlots, Parent, SlotVersion
from jax_passing.switch.data_planes.device import Device, Neighbour
from jax_passing.switch.data_planes.pipeline import DeviceError
from jax_passing.switch.data_planes.tofino import TofinoDataPlane

MAC = 0x020000000000


class Memory:
    """A device."""

    lanes, register_cells = 64, 64

    def __init__(self):
        self.entries, self.groups, self.registers = [], {}, {}

    def attach(self):
        pass

    def check_control(self):
        pass

    def insert(self, entry):
        assert entry not in self.entries
        self.entries.append(entry)

    def delete(self, entry):
        self.entries.remove(entry)

    def entry_count(self, table):
        return len(self.of(table))

    def of(self, table):
        return [entry for entry in self.entries if entry.table == table]

    def insert_group(self, group, replicas):
        self.groups[group] = list(replicas)

    def delete_group(self, group):
        del self.groups[group]

    def counter(self, name):
        return [0] * len(VERDICTS)

    def register(self, name, index):
        return self.registers.get((name, index), 0)


PLACES = {"10.0.0.1": 1, "10.0.0.2": 2, "10.0.9.9": 9}
DEVICE = Device(
    runtime="127.0.0.1:9559",
    address="10.0.0.254",
    mac="02:00:00:00:00:fe",
    ports=(1, 2, 9),
    neighbours=tuple(Neighbour(address, f"02:00:00:00:00:0{port}", port) for address, port in PLACES.items()),
)
PARENT = Parent(job=5, epoch=2, slot_first=4, worker=3, address=("10.0.9.9", 7171))
JOB = JobSlots(7, 3, 8, 4, (("10.0.0.1", 1001), ("10.0.0.2", 1002)), parent=PARENT)


@pytest.fixture
def device():
    return Memory()


def test_its_own_address(device):
    TofinoDataPlane(DEVICE, device)
    (own,) = device.of("own_address")
    assert (own.match, own.action) == ({"ip": 0x0A0000FE}, "set_ours")
    (question,) = device.of("question")
    assert question.match == {"ip": 0x0A0000FE, "operation": 1}
    assert question.parameters == {"own_mac": MAC + 0xFE}
    assert {entry.match["mac"]: entry.parameters["port"] for entry in device.of("forward")} == {
        MAC + port: port for port in (1, 2, 9)
    }


def test_a_job_comes_and_goes_without_a_trace(device):
    data_plane = TofinoDataPlane(DEVICE, device)
    before = list(device.entries)
    data_plane.add_job(JOB)
    assert device.of("admission") == tofino_admission.rows(JOB, "10.0.0.254", 2)
    assert [(entry.match, entry.parameters["udp_port"]) for entry in device.of("receiver")] == [
        ({"job": 7, "worker": 0}, 1001),
        ({"job": 7, "worker": 1}, 1002),
    ]
    (above,) = device.of("parent")
    assert above.match == {"job": 7}
    assert above.parameters == {"job": 5, "epoch": 2, "worker": 3, "slot_shift": 65532} | {
        "mac": MAC + 9,
        "ip": 0x0A000909,
        "udp_port": 7171,
    }
    assert device.groups[2] == [(1, 0), (2, 1)]
    data_plane.remove_job(7)
    assert device.entries == before
    assert 2 not in device.groups


def test_slot_version(device):
    data_plane = TofinoDataPlane(DEVICE, device)
    data_plane.add_job(JOB)
    assert data_plane.slot_version(9, 1).empty  # nobody has written it
    device.registers |= {("owner", 19): 7 << 16 | 3, ("sequence", 19): 41, ("missing_left", 19): 1 << 31 | 0b10}
    assert data_plane.slot_version(9, 1) == SlotVersion(empty=False, sequence=41, bitmap=0b01, complete=False)
    device.registers["missing_left", 19] = 1 << 31  # the parent's answer
    assert data_plane.slot_version(9, 1) == SlotVersion(empty=False, sequence=41, bitmap=0b11, complete=False)
    device.registers["missing_left", 19] = 0
    assert data_plane.slot_version(9, 1).complete
    device.registers["owner", 19] = 7 << 16 | 2  # of the epoch before
    assert data_plane.slot_version(9, 1).empty


def test_machines_are_listed(device):
    data_plane = TofinoDataPlane(DEVICE, device)
    with pytest.raises(DeviceError, match=r"list 10\.0\.0\.3 among the neighbours"):
        data_plane.add_job(JobSlots(8, 1, 0, 4, (("10.0.0.3", 1),)))

"""The tables of p4/tna are other ones than v1model's, for a Tofino's stages are few."""

from collections.abc import Mapping

from jax_passing.switch.data_planes import tofino_admission
from jax_passing.switch.data_planes.data_plane import JobSlots, SlotVersion
from jax_passing.switch.data_planes.device import Neighbour, ip_number, mac_number
from jax_passing.switch.data_planes.p4 import P4DataPlane
from jax_passing.switch.data_planes.pipeline import DeviceError, Entry

ARP_REQUEST = 1


class TofinoDataPlane(P4DataPlane):
    """The owner of slots is a job and its epoch, with no number for each use: no two uses have both (jobs.py), and
    a control plane that takes the device over loads the program anew, which clears the registers."""

    worker_limit = tofino_admission.WORKER_LIMIT
    newest_register = "needs.needing"

    def _own_entries(self) -> list[Entry]:
        own = {"ip": ip_number(self._device.address)}
        answer = {"own_mac": mac_number(self._device.mac)}
        return [
            Entry("own_address", own, "set_ours"),
            Entry("question", {**own, "operation": ARP_REQUEST}, "answer_arp", answer),
        ]

    def _entries(self, job: JobSlots, ways: list[Neighbour], group: int) -> list[Entry]:
        entries = self._receivers(job, ways)
        if job.parent is not None:
            above = job.parent
            address, udp_port = above.address
            shift = (above.slot_first - job.slot_first) % (1 << 16)
            numbers = {"job": above.job, "epoch": above.epoch, "worker": above.worker, "slot_shift": shift}
            receiver = {"mac": mac_number(self._neighbour(address).mac), "ip": ip_number(address), "udp_port": udp_port}
            entries.append(Entry("parent", {"job": job.job}, "sum_to_parent", numbers | receiver))
        return entries + tofino_admission.rows(job, self.host, group)

    def _seen(self, address: str) -> Neighbour:
        raise DeviceError(f"list {address} among the neighbours in the device's file: a Tofino doesn't learn them")

    def stats(self) -> Mapping[str, int]:
        """Returns all counts but `too_far`: a Tofino can't know how far a job is (docs/operate/switches.md)."""
        return {name: count for name, count in super().stats().items() if name != "too_far"}

    def _slot_version(self, slot: int, version: int) -> SlotVersion:
        index = 2 * slot + version
        job = self._job_of(slot)
        if job is None or self._pipeline.register("owner", index) != job.job << 16 | job.epoch:
            return SlotVersion(empty=True, sequence=0, bitmap=0, complete=False)
        sequence = self._pipeline.register("sequence", index)
        missing = self._pipeline.register("missing_left", index)
        added = ((1 << len(job.addresses)) - 1) & ~missing
        return SlotVersion(empty=False, sequence=sequence, bitmap=added, complete=missing == 0)

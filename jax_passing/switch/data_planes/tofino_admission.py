"""One table admits packets where stages are scarce (p4/tna/admission.p4); its rows are made here.

The first row that holds names the verdict, so the order of checks in docs/internals/protocol.md is that of priorities.
"""

from collections.abc import Mapping

from jax_passing.protocol.packet import CONTRIBUTION, EVERY_WORKER, RESULT
from jax_passing.protocol.verdicts import VERDICTS
from jax_passing.switch.data_planes.data_plane import JobSlots
from jax_passing.switch.data_planes.device import ip_number
from jax_passing.switch.data_planes.pipeline import Entry

WORKER_LIMIT = 31  # bits of a register but one, which stands for the parent's answer
PARENT_BIT = 1 << 31

FIRST_PASS, ANSWER_PASS = 0, 4  # p4/tna/metadata.p4

_EXACT = 0xFFFFFFFF


def rows(job: JobSlots, own_address: str, group: int) -> list[Entry]:
    """Returns the rows about a job, in the order of insertion: the row that accepts packets comes last.

    `group` is the multicast group of its workers.

    A packet that no row knows is of a foreign job: the table's default.
    """
    assert 0 < len(job.addresses) <= WORKER_LIMIT, job
    assert job.slot_first % job.slot_count == 0, job
    first = {"pass": _exactly(FIRST_PASS), "own_ip": _exactly(ip_number(own_address))}
    number = {**first, "job": _exactly(job.job)}
    found = [_refuse(1, number, "foreign_epoch")]
    number |= {"epoch": _exactly(job.epoch)}
    found.append(_refuse(2, number, "foreign_worker"))

    everybody = (1 << len(job.addresses)) - 1 | (PARENT_BIT if job.parent is not None else 0)
    accepted = []
    for worker, address in enumerate(job.addresses):
        match = number | {"worker": _exactly(worker)}
        found.append(_refuse(3, match, "foreign_source"))
        match |= _from(address)
        found.append(_refuse(4, match, "foreign_slot"))
        match |= _inside(job.slot_first, job.slot_count)
        found.append(_refuse(5, match, "not_contribution"))
        match |= {"type": _exactly(CONTRIBUTION)}
        del match["pass"]  # later passes look the same
        bit = 1 << worker
        accepted.append(_row(6, match, "accept", {"worker": bit, "others": everybody & ~bit, "group": group}))

    if job.parent is not None:
        found += _parent_rows(job, first, group)
    return found + accepted


def _parent_rows(job: JobSlots, first: Mapping[str, tuple[int, int]], group: int) -> list[Entry]:
    """Returns the rows about results of the parent. They bear the parent's numbers, so they come before a job of ours
    with the same number."""
    parent = job.parent
    assert parent is not None
    match = {**first, "type": _exactly(RESULT), "job": _exactly(parent.job)}
    found = [_refuse(11, match, "foreign_epoch")]
    match = match | {"epoch": _exactly(parent.epoch)}
    found.append(_refuse(12, match, "foreign_worker"))
    match = match | {"worker": _exactly(EVERY_WORKER)}
    found.append(_refuse(13, match, "foreign_source"))
    match = match | _from(parent.address)
    found.append(_refuse(14, match, "foreign_slot"))
    match = match | _inside(parent.slot_first, job.slot_count)
    shift = (job.slot_first - parent.slot_first) % (1 << 16)
    ours = {"job": job.job, "epoch": job.epoch, "slot_shift": shift}
    answer = {"pass": (ANSWER_PASS, _EXACT & ~1), "job": _exactly(job.job), "epoch": _exactly(job.epoch)}
    return [*found, _row(16, answer, "answer", {"group": group}), _row(15, match, "from_parent", ours)]


def _exactly(value: int) -> tuple[int, int]:
    return value, _EXACT


def _from(address: tuple[str, int]) -> dict[str, tuple[int, int]]:
    ip, udp_port = address
    return {"ip": _exactly(ip_number(ip)), "udp_port": _exactly(udp_port)}


def _inside(slot_first: int, slot_count: int) -> dict[str, tuple[int, int]]:
    assert slot_first % slot_count == 0, (slot_first, slot_count)
    return {"slot": (slot_first, _EXACT & ~(slot_count - 1))}


def _refuse(priority: int, match: Mapping[str, tuple[int, int]], verdict: str) -> Entry:
    return _row(priority, match, "refuse", {"verdict": VERDICTS.index(verdict)})


def _row(priority: int, match: Mapping[str, tuple[int, int]], action: str, parameters: Mapping[str, int]) -> Entry:
    values = {key: value for key, (value, _) in match.items()}
    return Entry("admission", values, action, parameters, {key: mask for key, (_, mask) in match.items()}, priority)

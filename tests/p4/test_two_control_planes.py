"""A second control plane on one bmv2: the first one notices, and leaves it alone until the device is empty."""

from dataclasses import replace

import pytest

from jax_passing.switch.data_planes import p4
from jax_passing.switch.data_planes.data_plane import JobSlots
from jax_passing.switch.data_planes.pipeline import DeviceError
from jax_passing.switch.data_planes.pipelines.bmv2 import CONTEXT

JOB = JobSlots(7, 3, 8, 4, (("10.0.0.1", 1001), ("10.0.0.2", 1002)))


@pytest.mark.parametrize("by", ["bmv2"], scope="module")  # what its server does with two of them
def test_the_later_one_stays(switch, monkeypatch):
    monkeypatch.setattr(p4, "CHECK_S", 0.0)
    monkeypatch.setattr(p4, "CHECK_AGAIN_S", 0.0)
    first = switch.data_plane
    other = replace(JOB, job=8, slot_first=16)
    for job in (JOB, other):
        first.add_job(job)
    assert first.check() == ""
    second = switch.connect()
    for job in (JOB, other):  # as many rows as the first one had
        second.add_job(job)
    with pytest.raises(DeviceError, match="has another control plane, which came later"):
        first.remove_job(7)
    assert "has another control plane" in first.check()
    for _ in range(3):
        assert first.check() == ""
        assert second.check() == ""
    with pytest.raises(DeviceError, match="has another control plane"):
        first.add_job(JOB)

    pipeline = second._pipeline
    for name in pipeline._filled_tables():  # as after a restart
        pipeline._standard("bm_mt_clear_entries", CONTEXT, name, False)
    assert first.check() == ""
    assert "has another control plane" in second.check()
    first.add_job(JOB)
    second.close()

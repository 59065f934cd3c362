"""The doctor judges what made-up kernels grant, and can ask this one."""

import resource

import pytest

from jax_passing.doctor import kernel
from jax_passing.doctor.findings import State

MIB = 1 << 20


@pytest.mark.parametrize(
    ("gso", "gro", "lacks"), [(True, True, ""), (False, True, "UDP_SEGMENT"), (True, False, "UDP_GRO")]
)
def test_super_packets(gso, gro, lacks):
    found = kernel.super_packets(gso, gro)
    assert found.state == (State.WARNING if lacks else State.GOOD)
    assert lacks in found.reason


def test_an_option_that_no_kernel_has():
    assert not kernel.has_udp_option(254, 1)


@pytest.mark.parametrize(
    ("granted", "limits", "state", "says"),
    [
        ((4 * MIB, 4 * MIB), (212992, 4 * MIB), State.GOOD, "net.core.rmem_max = 212992 moot"),
        ((4 * MIB, 4 * MIB), (4 * MIB, 4 * MIB), State.GOOD, "4 MiB to send"),
        ((212992, 4 * MIB), (212992, 4 * MIB), State.WARNING, "0.203 MiB to receive"),
        ((4 * MIB, 65536), (4 * MIB, 65536), State.BAD, "two super-packets"),
    ],
)
def test_buffers(granted, limits, state, says):
    keys = ("rmem", "wmem")
    found = kernel.buffers(dict(zip(keys, granted, strict=True)), dict(zip(keys, limits, strict=True)))
    assert (found.state, says in found.reason) == (state, True), found
    for key, size in zip(keys, granted, strict=True):
        assert (f"net.core.{key}_max=4194304" in found.remedy) == (size < 4 * MIB)


def test_buffers_of_this_machine(tmp_path):
    granted = kernel.granted_buffers()
    assert all(0 < size <= kernel.BUFFER_BYTES for size in granted.values())
    assert kernel.buffer_limits(tmp_path) == {}
    (tmp_path / "proc/sys/net/core").mkdir(parents=True)
    (tmp_path / "proc/sys/net/core/wmem_max").write_text("212992\n")
    assert kernel.buffer_limits(tmp_path) == {"wmem": 212992}


@pytest.mark.parametrize(
    ("allowed", "quota", "devices", "state"),
    [
        (8, None, 4, State.GOOD),
        (8, 16.0, 8, State.GOOD),
        (8, 3.5, 4, State.WARNING),
        (1, None, 1, State.WARNING),
        (4, None, 8, State.WARNING),
        (8, 0.5, 1, State.BAD),
    ],
)
def test_cores(allowed, quota, devices, state):
    assert kernel.cores(allowed, quota, devices).state == state


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "250000 100000"}, 2.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
    ],
)
def test_quota_of_a_control_group(tmp_path, files, quota):
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert kernel.core_quota(tmp_path) == quota


@pytest.mark.parametrize(
    ("soft", "hard", "state", "says"),
    [
        (1024, 1 << 20, State.GOOD, "1024, at most 1048576"),
        (1 << 30, resource.RLIM_INFINITY, State.GOOD, "1073741824, at most any number"),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, State.GOOD, "any number, at most any number"),
        (1024, 1024, State.WARNING, "enough for a host"),
        (128, 1 << 20, State.WARNING, "many switches"),
        (32, 1 << 20, State.BAD, "too few for a host"),
    ],
)
def test_files(soft, hard, state, says):
    found = kernel.files(soft, hard)
    assert (found.state, says in found.reason) == (state, True), found

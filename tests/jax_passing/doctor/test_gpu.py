"""The doctor examines GPUs of a made-up driver (fake_cuda.c). No real one has run this."""

import ctypes
import functools
import subprocess
from pathlib import Path

import pytest

from jax_passing.doctor import cuda_driver, gpu
from jax_passing.doctor.cuda_driver import CudaError, Driver
from jax_passing.doctor.findings import State
from support.net.sys_trees import add_device, add_link

SOURCE = Path(__file__).with_name("fake_cuda.c")
GPU_0 = "pci0000:3a/0000:3a:00.0/0000:3d:00.0"
GPU_1 = "pci0000:4a/0000:4a:00.0/0000:4d:00.0"
NIC_0 = "pci0000:3a/0000:3a:01.0/0000:3e:00.0"
NIC_1 = "pci0000:ae/0000:ae:00.0/0000:af:00.0"


def installed(**versions):
    return {name.replace("_", "-"): version for name, version in versions.items()}


FITTING = installed(jaxlib="0.10.0", jax_cuda12_plugin="0.10.0")


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("cuda") / "libfake.so"
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(path), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    return str(path)


@pytest.fixture
def tree(tmp_path):
    """A GPU with a card beside it, and another one whose card is on another node."""
    for path, numa in ((GPU_0, 0), (GPU_1, 0), (NIC_0, 0), (NIC_1, 1)):
        add_device(tmp_path, path, numa=numa)
    add_link(tmp_path, "net", "eth0", NIC_0)
    add_link(tmp_path, "net", "eth1", NIC_1)
    return tmp_path


@pytest.fixture
def look(library, tree, monkeypatch):
    monkeypatch.setattr(gpu, "PINNED_BYTES", 1 << 20)

    def look(interface=None, root=tree, **settings):
        for name, text in settings.items():
            monkeypatch.setenv(name, text)
        nccl = functools.partial(cuda_driver.nccl_version, library)
        found = list(gpu.findings(lambda: Driver(library), root, FITTING, nccl, interface))
        assert ctypes.CDLL(library).fake_contexts() == 0  # all are released
        for finding in found:
            assert bool(finding.remedy) == (finding.state in (State.WARNING, State.BAD)), finding
        return {finding.check: finding for finding in found}

    return look


def test_all_is_well(look):
    found = look(interface="eth0")
    assert {finding.state for finding in found.values()} == {State.GOOD}, found
    assert list(found) == [
        "GPU driver",
        "GPU 0",
        "GPU 0, pinned memory",
        "NCCL",
        "JAX's CUDA plugin",
        "GPU 0, card beside it",
    ]
    assert found["GPU driver"].reason == "serves CUDA 12.4, 1 device"
    assert found["GPU 0"].reason == "Fake 0, 80.0 GiB, at 0000:3d:00.0"
    assert "GB/s to the device" in found["GPU 0, pinned memory"].reason
    assert found["NCCL"].reason == "2.27.3"
    assert found["GPU 0, card beside it"].reason.startswith("eth0 (shares 1 step of the way")


def test_every_device_is_looked_at(look):
    found = look(FAKE_CUDA_DEVICES="2")
    assert found["GPU 1"].reason == "Fake 1, 80.0 GiB, at 0000:4d:00.0"
    assert found["GPU 1, pinned memory"].state == State.GOOD


@pytest.mark.parametrize(
    ("to", "back", "state"), [(20e9, 25e9, State.GOOD), (10e9, 25e9, State.WARNING), (20e9, 5e9, State.WARNING)]
)
def test_copies_are_compared_with_the_link(look, tree, monkeypatch, to, back, state):
    folder = tree / "sys/bus/pci/devices/0000:3d:00.0"
    (folder / "current_link_width").write_text("16\n")
    (folder / "max_link_speed").write_text("16.0 GT/s PCIe\n")
    monkeypatch.setattr(Driver, "copy_rates", lambda *_: cuda_driver.CopyRates(to, back))
    found = look()["GPU 0, pinned memory"]
    assert found.state == state
    assert f"{to / 1e9:.1f} GB/s to the device, {back / 1e9:.1f} GB/s back, over a link of 31.5 GB/s" in found.reason


@pytest.mark.parametrize("function", ["cuMemHostAlloc", "cuMemAlloc_v2", "cuMemcpyHtoD_v2", "cuDevicePrimaryCtxRetain"])
def test_no_memory(look, function):
    found = look(FAKE_CUDA_FAILS=f"{function}=2")
    assert found["GPU 0, pinned memory"].state == State.BAD
    assert f"{function} returned CUDA_ERROR_OUT_OF_MEMORY (2)" in found["GPU 0, pinned memory"].reason


def test_a_driver_that_lacks_a_function(library, monkeypatch):
    driver = Driver(library)
    monkeypatch.setitem(cuda_driver._FUNCTIONS, "cuNoSuch", ())
    with pytest.raises(CudaError, match="has no cuNoSuch"):
        driver._call("cuNoSuch")


@pytest.mark.parametrize(("number", "shown"), [("22703", "2.27.3"), ("2804", "2.8.4")])
def test_nccl(look, number, shown):
    assert look(FAKE_NCCL_VERSION=number)["NCCL"].reason == shown


def test_nccl_that_is_missing(look):
    assert look(FAKE_CUDA_FAILS="ncclGetVersion=3")["NCCL"].state == State.WARNING
    assert look(FAKE_CUDA_FAILS="ncclGetVersion=3", FAKE_CUDA_DEVICES="2")["NCCL"].state == State.BAD


@pytest.mark.parametrize(
    ("packages", "driver", "state"),
    [
        (FITTING, 12, State.GOOD),
        (FITTING, 13, State.GOOD),
        (installed(jaxlib="0.10.1", jax_cuda12_plugin="0.10.0"), 12, State.WARNING),
        (installed(jaxlib="0.10.0"), 12, State.BAD),
        (installed(jaxlib="0.10.0", jax_cuda13_plugin="0.10.0"), 12, State.BAD),
    ],
)
def test_plugin(packages, driver, state):
    found = gpu.plugin(packages, driver)
    assert found.state == state
    assert (state == State.GOOD) == (found.remedy == "")


def test_the_card_beside_a_gpu(look, tree):
    found = look(FAKE_CUDA_DEVICES="2", interface="eth1")
    assert found["GPU 0, card beside it"].state == State.WARNING
    assert "but packets to the switch leave by eth1" in found["GPU 0, card beside it"].reason
    (tree / "sys/class/net/eth0/device").unlink()
    found = look()
    assert found["GPU 1, card beside it"].state == State.WARNING
    assert "crosses between the sockets" in found["GPU 1, card beside it"].reason
    (tree / "sys/class/net/eth1/device").unlink()
    assert look()["GPU 1, card beside it"].state == State.LEFT_OUT


def test_a_device_that_sys_does_not_show(look, tmp_path):
    assert look(root=tmp_path / "empty")["GPU 0, card beside it"].state == State.LEFT_OUT


@pytest.mark.parametrize("settings", [{"FAKE_CUDA_DEVICES": "0"}, {"FAKE_CUDA_FAILS": "cuInit=100"}])
def test_a_driver_without_devices(look, settings):
    (found,) = look(**settings).values()
    assert found.state == State.LEFT_OUT
    assert "there is none" in found.reason


def test_a_driver_that_does_not_start(look):
    (found,) = look(FAKE_CUDA_FAILS="cuInit=999").values()
    assert found.state == State.BAD
    assert "cuInit returned CUDA_ERROR_SOMETHING (999)" in found.reason


def test_no_driver(tree):
    def no_library():
        raise OSError("libcuda.so.1: cannot open shared object file")

    (found,) = gpu.findings(no_library, tree, FITTING, str, None)
    assert found.state == State.LEFT_OUT
    assert found.reason.startswith("there is none: libcuda.so.1: cannot")
    add_device(tree, "pci0000:3a/0000:5d:00.0", vendor="0x10de", kind="0x030200")
    (found,) = gpu.findings(no_library, tree, FITTING, str, None)
    assert found.state == State.BAD
    assert "0000:5d:00.0 can't be used" in found.reason

"""The nearest card of a GPU is found in trees of /sys that are made up after those of real machines."""

from pathlib import Path

import pytest

from jax_passing.doctor import pci
from support.net.sys_trees import add_device, add_link

ROOT_A, ROOT_B = "pci0000:3a", "pci0000:ae"
SWITCH = f"{ROOT_A}/0000:3a:00.0/0000:3b:00.0"
GPU = f"{SWITCH}/0000:3c:04.0/0000:3d:00.0"
NIC_BESIDE = f"{SWITCH}/0000:3c:08.0/0000:3e:00.0"
NIC_SAME_ROOT = f"{ROOT_A}/0000:3a:02.0/0000:40:00.0"
NIC_FAR = f"{ROOT_B}/0000:ae:00.0/0000:af:00.0"


@pytest.fixture
def tree(tmp_path):
    add_device(tmp_path, GPU, numa=0, vendor="0x10de", kind="0x030200")
    for name, path, numa in (("eth0", NIC_FAR, 1), ("eth1", NIC_BESIDE, 0), ("eth2", NIC_SAME_ROOT, 0)):
        add_device(tmp_path, path, numa=numa, vendor="0x15b3", kind="0x020000")
        add_link(tmp_path, "net", name, path)
    add_link(tmp_path, "infiniband", "mlx5_1", NIC_BESIDE)
    (tmp_path / "sys/class/net/lo").mkdir()  # without a device
    return tmp_path


def names(neighbour):
    return [card.name for card in neighbour.cards]


def test_the_nearest_card_shares_the_most_of_the_way(tree):
    gpu = pci.gpu(tree, "00000000:3D:00.0")  # as drivers write it
    assert gpu.path == tuple(Path(GPU).parts)
    cards = pci.cards(tree)
    assert sorted(card.name for card in cards) == ["eth0", "eth1/mlx5_1", "eth2"]
    nearest = pci.nearest(gpu, cards)
    assert (names(nearest), nearest.shared) == (["eth1/mlx5_1"], 3)
    others = [card for card in cards if "eth1" not in card.name]
    assert (names(pci.nearest(gpu, others)), pci.nearest(gpu, others).shared) == (["eth2"], 1)
    assert pci.nearest(gpu, []) is None


def test_of_other_roots_those_of_the_same_node_are_nearer():
    gpu = pci.Node("", ("pci0000:10", "0000:11:00.0"), 1)
    cards = [pci.Node("a", ("pci0000:20", "0000:21:00.0"), 0), pci.Node("b", ("pci0000:30", "0000:31:00.0"), 1)]
    assert names(pci.nearest(gpu, cards)) == ["b"]
    nowhere = [pci.Node(card.name, card.path) for card in cards]
    assert names(pci.nearest(gpu, nowhere)) == ["a", "b"]


def test_a_virtual_card_is_where_its_pci_device_is(tree):
    add_device(tree, f"{ROOT_B}/0000:ae:03.0", numa=1)
    add_link(tree, "net", "ens3", f"{ROOT_B}/0000:ae:03.0/virtio1")
    (ens3,) = (card for card in pci.cards(tree) if card.name == "ens3")
    assert (ens3.path, ens3.numa) == ((ROOT_B, "0000:ae:03.0"), 1)


def test_cards_that_are_not_on_pci_have_no_place(tree):
    add_link(tree, "net", "usb0", "platform/usb1")
    assert "usb0" not in {card.name for card in pci.cards(tree)}


def test_nvidias_cards_on_the_bus(tree):
    assert pci.nvidia_devices(tree) == ["0000:3d:00.0"]
    add_device(tree, f"{SWITCH}/0000:3d:00.1", vendor="0x10de", kind="0x040300")  # its sound
    assert pci.nvidia_devices(tree) == ["0000:3d:00.0"]


@pytest.mark.parametrize(
    ("speed", "width", "gbytes"),
    [("16.0 GT/s PCIe\n", "16\n", 31.5), ("8.0 GT/s PCIe\n", "8\n", 7.88), ("5.0 GT/s PCIe\n", "16\n", 8.0)],
)
def test_the_link_to_pci(tree, speed, width, gbytes):
    folder = tree / "sys/bus/pci/devices/0000:3d:00.0"
    assert pci.link_bytes_per_s(tree, "0000:3d:00.0") is None
    (folder / "max_link_speed").write_text(speed)
    (folder / "current_link_width").write_text(width)
    assert pci.link_bytes_per_s(tree, "0000:3D:00.0") == pytest.approx(gbytes * 1e9, rel=0.01)
    (folder / "max_link_speed").write_text("Unknown\n")
    assert pci.link_bytes_per_s(tree, "0000:3d:00.0") is None

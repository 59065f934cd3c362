"""Made-up trees of /sys: PCI devices, and the network devices that are links to them."""


def add_device(root, path, *, numa=None, vendor="0x1af4", kind="0x020000"):
    """Makes a device at this path below /sys/devices, with the link that the bus has to it."""
    folder = root / "sys/devices" / path
    folder.mkdir(parents=True)
    for name, text in (("vendor", vendor), ("class", kind), ("numa_node", numa)):
        if text is not None:
            (folder / name).write_text(f"{text}\n")
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / folder.name).symlink_to(folder)


def add_link(root, kind, name, path):
    """A device of /sys/class/`kind` that belongs to the one at this path below /sys/devices."""
    (root / "sys/devices" / path).mkdir(parents=True, exist_ok=True)
    folder = root / "sys/class" / kind / name
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(root / "sys/devices" / path)

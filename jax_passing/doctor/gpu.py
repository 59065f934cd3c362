"""GPUs: the driver and its abilities that sums need, NCCL, JAX's plugin, and the card beside each."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from jax_passing.doctor import pci
from jax_passing.doctor.cuda_driver import NO_DEVICE, CudaError, Device, Driver
from jax_passing.doctor.findings import Finding, bad, good, left_out, warning
from jax_passing.doctor.software import numbers

PINNED_BYTES = 64 << 20
ROUNDS = 5
COPY_SHARE = 0.5  # of what the card's link carries; less means that something is in the way
PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin")
_INSTALL_DRIVER = "Install NVIDIA's driver; in a container, start it with the GPUs (--gpus all, or the device plugin)."


def findings(
    load: Callable[[], Driver],
    root: Path,
    packages: Mapping[str, str],
    nccl: Callable[[], str],
    interface: str | None,
) -> Iterator[Finding]:
    """One after the other, as each is known.

    Args:
      load: the driver. Raises OSError or CudaError.
      root: below it lies /sys.
      packages: which of jaxlib and PLUGINS are installed.
      nccl: tells the version. Raises OSError or CudaError.
      interface: which one leads to the switch, if that is known.
    """
    try:
        driver = load()
        devices = driver.devices()
        major, minor = driver.cuda_version()
    except OSError as error:
        yield _no_driver(root, str(error))
        return
    except CudaError as error:
        if error.code == NO_DEVICE:
            yield _no_driver(root, str(error))
        else:
            yield bad("GPU driver", str(error), "Look at dmesg and nvidia-smi; does the driver fit the kernel module?")
        return
    if not devices:
        yield _no_driver(root, "the driver shows no device (CUDA_VISIBLE_DEVICES?)")
        return
    yield good("GPU driver", f"serves CUDA {major}.{minor}, {len(devices)} device{'s' * (len(devices) > 1)}")
    for device in devices:
        yield from _device(driver, device, root)
    yield _nccl(nccl, len(devices))
    yield plugin(packages, major)
    cards = pci.cards(root)
    for device in devices:
        yield card_beside(device, root, cards, interface)


def trouble(what: str) -> Finding:
    """Makes the finding for trouble with the process that asks the driver."""
    return bad(
        "GPU driver",
        f"the process that asks it {what}",
        "Look at dmesg and nvidia-smi for the driver's errors; restart it, or the machine.",
    )


def _no_driver(root: Path, reason: str) -> Finding:
    if there := pci.nvidia_devices(root):
        on_bus = f"NVIDIA's card{'s' * (len(there) > 1)} {', '.join(there)}"
        return bad("GPU driver", f"{on_bus} can't be used: {reason}", _INSTALL_DRIVER)
    return left_out("GPU", f"there is none: {reason}")


def _device(driver: Driver, device: Device, root: Path) -> Iterator[Finding]:
    name = f"GPU {device.ordinal}"
    yield good(name, f"{device.name}, {device.memory_bytes / 2**30:.1f} GiB, at {device.pci}")
    try:
        with driver.context(device), driver.pinned(PINNED_BYTES) as pinned:
            yield _copies(driver, device, pinned, root)
    except CudaError as error:
        yield bad(
            f"{name}, pinned memory",
            f"{PINNED_BYTES >> 20} MiB: {error}",
            "Is the device free (nvidia-smi), and is there memory that may be locked (ulimit -l; the container's)?",
        )


def _copies(driver: Driver, device: Device, pinned: int, root: Path) -> Finding:
    check = f"GPU {device.ordinal}, pinned memory"
    try:
        rates = driver.copy_rates(pinned, PINNED_BYTES, ROUNDS)
    except CudaError as error:
        return bad(check, f"it can't be copied: {error}", "Is the device free? nvidia-smi tells who has its memory.")
    text = f"{rates.to_device / 1e9:.1f} GB/s to the device, {rates.from_device / 1e9:.1f} GB/s back"
    link = pci.link_bytes_per_s(root, device.pci)
    if link is not None:
        text += f", over a link of {link / 1e9:.1f} GB/s"
        if min(rates.to_device, rates.from_device) < COPY_SHARE * link:
            return warning(
                check,
                f"{text}: less than half of it",
                "Bind the process to the NUMA node of the GPU (numactl), and look for others that copy.",
            )
    return good(check, text)


def _nccl(nccl: Callable[[], str], devices: int) -> Finding:
    try:
        return good("NCCL", nccl())
    except (OSError, CudaError) as error:
        reason, remedy = f"it can't be loaded: {error}", "pip install 'jax[cuda13]' brings it (or cuda12)."
        if devices > 1:
            return bad("NCCL", f"{reason}; XLA sums over {devices} devices of a host by it", remedy)
        return warning("NCCL", f"{reason}; XLA needs it as soon as there are two devices", remedy)


def plugin(packages: Mapping[str, str], driver_major: int) -> Finding:
    """JAX's plugin for CUDA: there, of jaxlib's version, and not too new for the driver."""
    check = "JAX's CUDA plugin"
    found = {name: packages[name] for name in PLUGINS if name in packages}
    if not found:
        wanted = "cuda13" if driver_major >= 13 else "cuda12"
        return bad(check, "not installed: JAX sees no GPU", f"pip install 'jax[{wanted}]'")
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    jaxlib = packages.get("jaxlib", "is missing")
    if all(int(re.sub(r"\D", "", name)) > driver_major for name in found):
        return bad(check, f"{text}: the driver serves CUDA {driver_major} at most", "Install a newer driver.")
    if all(numbers(version) != numbers(jaxlib) for version in found.values()):
        return warning(check, f"{text}, but jaxlib {jaxlib}", "Install them together: pip install -U 'jax[cuda13]'.")
    return good(check, text)


def card_beside(device: Device, root: Path, cards: list[pci.Node], interface: str | None) -> Finding:
    """Finds the network card nearest to the GPU, and whether packets leave by it."""
    check = f"GPU {device.ordinal}, card beside it"
    gpu = pci.gpu(root, device.pci)
    if gpu is None:
        return left_out(check, f"/sys doesn't show {device.pci}")
    neighbour = pci.nearest(gpu, cards)
    if neighbour is None:
        return left_out(check, "/sys shows no network card on PCI")
    names = " and ".join(card.name for card in neighbour.cards)
    node = neighbour.cards[0].numa
    steps = f"{neighbour.shared} step{'s' * (neighbour.shared > 1)}" if neighbour.shared else "nothing"
    text = f"{names} (shares {steps} of the way through PCI, NUMA node {node if node >= 0 else 'unknown'})"
    if gpu.numa >= 0 and node >= 0 and gpu.numa != node:
        return warning(
            check,
            f"{text}; the GPU is on node {gpu.numa}: its data crosses between the sockets",
            "Use a GPU and a card of one node where you can choose.",
        )
    leaves_by = next((card for card in cards if interface in card.name.split("/")), None)
    if leaves_by is not None and leaves_by not in neighbour.cards:
        return warning(
            check,
            f"{text}, but packets to the switch leave by {leaves_by.name}",
            f"Give the switch an address that is reached through {names}.",
        )
    return good(check, text)

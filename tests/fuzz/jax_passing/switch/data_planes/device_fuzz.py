"""A device file is read, or refused with a text that names it."""

import tempfile
from pathlib import Path

from jax_passing.errors import ConfigError
from jax_passing.switch.data_planes.device import ip_number, mac_number, read_device

_folder = tempfile.TemporaryDirectory(prefix="device-fuzz-")
_path = Path(_folder.name, "device.toml")


def test_one_input(data: bytes) -> None:
    _path.write_bytes(data)
    try:
        device = read_device(_path)
    except ConfigError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert str(_path) in refusal, refusal
        return
    assert device.ports
    assert device.runtime_address[1] > 0
    for place in (device, *device.neighbours):
        assert 0 < ip_number(place.address) < 1 << 32
        assert 0 < mac_number(place.mac) < 1 << 48

"""Settings of a host and of a switch: from a file and from variables, they are right or named in a ConfigError.

The input is a TOML file, then a zero byte, then a "NAME=VALUE" a line.
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from jax_passing import config
from jax_passing.errors import ConfigError
from jax_passing.switch.server import settings

_folder = tempfile.TemporaryDirectory(prefix="config-fuzz-")
_path = Path(_folder.name, "settings.toml")


def test_one_input(data: bytes) -> None:
    file, _, variables = data.partition(b"\0")
    _path.write_bytes(file)
    pairs = (line.partition(b"=") for line in variables.replace(b"\0", b"").split(b"\n")[:8])
    environment = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    path = _path if file else None
    with suppress(ConfigError):
        host, sources = config.resolve({}, path, environment=environment)
        assert 0 <= host.rank < host.world_size <= config.RANKS_MAX
        assert host.switch is None or host.job
        assert set(sources) == set(config.Settings.__dataclass_fields__)
    with suppress(ConfigError):
        switch = settings.resolve({}, path, environment=environment)
        assert 1 <= switch.slots_per_job <= switch.slot_total
        assert (switch.data_plane == "software") == (switch.device is None)

"""Flight records are files, of which a folder never gets more than a few of each host or switch."""

import json
import os
import re
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from jax_passing.errors import ConfigError

Record = dict[str, Any]

KEPT = 4  # files of each host or switch
FREE_BYTES_MIN = 64 * 1024 * 1024
FILE_BYTES_MAX = 64 * 1024 * 1024  # a record has some MB
OURS = "jax_passing"  # the part of a record that only our own tools know


def default_folder() -> Path:
    """Returns the user's own folder for records on this machine."""
    return Path(tempfile.gettempdir()) / f"jax-passing-{os.getuid()}"


def write(record: Record, who: str, folder: Path | None) -> Path:
    """Writes a record, and removes the oldest ones of the same `who`, a host or a switch. `folder`: None stands for
    the default. Raises OSError."""
    if folder is None:
        folder = default_folder()
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise OSError(f"{folder} is somebody else's")
    folder.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < FREE_BYTES_MIN:
        raise OSError(f"{folder} has only {free_bytes >> 20} MiB left")
    prefix = f"record-{re.sub(r'[^A-Za-z0-9.]+', '_', who)[:100]}-"
    earlier = sorted(file for file in folder.glob(f"{prefix}*.json") if re.fullmatch(r"\d+", file.stem[len(prefix) :]))
    for file in earlier[: max(0, len(earlier) - KEPT + 1)]:
        file.unlink(missing_ok=True)
    file = folder / f"{prefix}{time.time_ns()}.json"
    unfinished = file.with_suffix(".unfinished")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(msgspec.json.encode(record))
        unfinished.replace(file)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return file


def read(file: Path) -> Record:
    """Raises ConfigError if it is no record of ours."""
    try:
        # A folder that several hosts share may have anything: a pipe to which nobody writes doesn't keep us waiting.
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ValueError("it is no regular file")
            text = stream.read(FILE_BYTES_MAX + 1)
        if len(text) > FILE_BYTES_MAX:
            raise ValueError("it is too large")
        record = json.loads(text)
        kind = record[OURS]["kind"]
        if kind not in ("host", "switch") or not isinstance(record[OURS]["written_at"], int | float):
            raise ValueError("it has another form")
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise ConfigError(f"{file} isn't a flight record of a host or a switch: {error}.") from error
    return record

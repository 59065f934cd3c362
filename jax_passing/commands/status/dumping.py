"""The flight records of switches are written where the command runs, and those of their hosts where these run."""

import time
from collections.abc import Mapping
from pathlib import Path

from jax_passing.errors import ConfigError, PassingError
from jax_passing.protocol.overview import Document
from jax_passing.records import files
from jax_passing.records.files import OURS


def write_all(answers: Mapping[str, Document | PassingError], folder: Path | None) -> list[Path]:
    """Writes a record of each switch that has told its last events; returns the files. Raises ConfigError."""
    now = time.time()
    written = []
    for address, answer in answers.items():
        if isinstance(answer, PassingError):
            continue
        events = [{"at": now - event.pop("ago_s"), **event} for event in map(dict, answer.get("events", ()))]
        record = {**answer, "events": events, OURS: {"kind": "switch", "written_at": now, "address": address}}
        try:
            written.append(files.write(record, f"switch-{address}", folder))
        except OSError as error:
            raise ConfigError(f"The flight record of the switch at {address} can't be written: {error}.") from error
    return written

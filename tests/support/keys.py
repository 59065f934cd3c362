"""Files with keys, which only their owner can read."""

from pathlib import Path

from jax_passing.protocol import keys


def write_key(file: Path, kind: str, key: bytes) -> Path:
    """Writes a key of this kind to the file; returns the file."""
    file.touch(mode=0o600)
    file.write_text(keys.key_line(kind, key))
    return file

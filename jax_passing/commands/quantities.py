"""Numbers of bytes as one writes them on the command line."""

import re

import typer


def parse_bytes(text: str) -> int:
    """Bytes from "4096", "64K", "64M", "1G" (powers of 1024, as in nccl-tests)."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if match is None or int(match[1]) == 0:
        raise typer.BadParameter(f"{text!r}: expected bytes, for example 4096, 64K, 64M or 1G")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]

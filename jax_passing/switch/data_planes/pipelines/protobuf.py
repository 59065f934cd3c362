"""This speaks as much of Protocol Buffers' wire format as P4Runtime's messages need.

A message is written from (field number, value) pairs and read as lists of values by field number. So the messages of
P4Runtime are a few numbers beside the calls that need them, whatever version of protobuf is installed. See
https://protobuf.dev/programming-guides/encoding/.

Why not the package `p4runtime` from PyPI, which has the same messages as generated classes: it asks for protobuf 4.21.6
or later, but its classes (of 1.4.1, 1.5.0 and 1.6.0) were generated for protobuf 3, and every later one refuses them
("Descriptors cannot be created directly") unless a variable chooses protobuf's pure-Python form for the whole process.
Read so, with 1.6.0, what this module writes are the messages that are meant.
"""

from collections.abc import Mapping
from typing import TypeAlias

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}

Field: TypeAlias = "tuple[int, int | str | bytes]"
Message: TypeAlias = "Mapping[int, list[int | bytes]]"


def _varint(value: int) -> bytes:
    assert value >= 0, "negative numbers aren't needed"
    encoded = b""
    while value >= 0x80:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def encode(*fields: Field) -> bytes:
    """Returns a message; messages inside it are given as what this returned. Zeros are written: a choice of 0 is a
    choice."""
    encoded = b""
    for number, value in fields:
        if isinstance(value, int):
            encoded += _varint(number << 3 | VARINT) + _varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            encoded += _varint(number << 3 | BYTES) + _varint(len(data)) + data
    return encoded


def decode(data: bytes) -> dict[int, list[int | bytes]]:
    """Returns every field, in order. Raises ValueError if it is no message."""
    fields: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        value: int | bytes
        kind = tag & 7
        if kind == VARINT:
            value, at = _read_varint(data, at)
        elif kind in (BYTES, *_FIXED_BYTES):
            length, at = _read_varint(data, at) if kind == BYTES else (_FIXED_BYTES[kind], at)
            value = data[at : at + length]
            if len(value) != length:
                raise ValueError("a message ends inside a field")
            at += length
        else:
            raise ValueError(f"a field of the unknown wire type {kind}")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError("a message ends inside a number")


def number(message: Message, field: int) -> int:
    """Returns a field that is a number, 0 if it isn't there; the last one of several counts."""
    value = message.get(field, [0])[-1]
    if not isinstance(value, int):
        raise ValueError(f"field {field} is no number")
    return value


def data(message: Message, field: int) -> bytes:
    """Returns a field that is a string, bytes or a message; empty if it isn't there."""
    value = message.get(field, [b""])[-1]
    if not isinstance(value, bytes):
        raise ValueError(f"field {field} is a number")
    return value


def text(message: Message, field: int) -> str:
    return data(message, field).decode(errors="replace")


def messages(message: Message, field: int) -> list[dict[int, list[int | bytes]]]:
    """Returns a field that is repeated messages."""
    return [decode(part) for part in message.get(field, []) if isinstance(part, bytes)]

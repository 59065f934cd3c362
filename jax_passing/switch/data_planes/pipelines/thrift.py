"""This calls by Thrift's binary protocol, which bmv2's runtime server speaks.

The protocol names the type of every value, so replies need no schema: a struct becomes a dict by field number. See
https://github.com/apache/thrift/blob/master/doc/specs/thrift-binary-protocol.md.
"""

import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from jax_passing.config import address_text

BOOL, BYTE, DOUBLE, I16, I32, I64, STRING, STRUCT, MAP, SET, LIST = 2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15
VERSION = 0x80010000
CALL, REPLY = 1, 2

STRING_BYTES_MAX = 64 << 20  # the largest answer is the program's JSON, far below
ITEMS_MAX = 1 << 20

_FORMATS = {BYTE: "!b", DOUBLE: "!d", I16: "!h", I32: "!i", I64: "!q"}


class ThriftError(Exception):
    """The server refused a call."""


def _encode(value: Any) -> tuple[int, bytes]:
    """Returns (type, bytes) of a value; a dict is a struct by field number."""
    match value:
        case bool():
            return BOOL, b"\1" if value else b"\0"
        case int():  # none of the arguments here has 64 bits
            return I32, struct.pack("!i", value)
        case str():
            return _encode(value.encode())
        case bytes():
            return STRING, struct.pack("!i", len(value)) + value
        case Mapping():
            return STRUCT, _encode_struct(value)
        case Sequence():
            items = [_encode(item) for item in value]
            assert len({kind for kind, _ in items}) <= 1, value
            kind = items[0][0] if items else STRING
            return LIST, struct.pack("!bi", kind, len(items)) + b"".join(item for _, item in items)
    raise TypeError(f"{type(value).__name__} has no Thrift type here")


def _encode_struct(fields: Mapping[int, Any]) -> bytes:
    encoded = b""
    for number, value in fields.items():
        kind, data = _encode(value)
        encoded += struct.pack("!bh", kind, number) + data
    return encoded + b"\0"


class ThriftClient:
    """A client has one connection to a server, made at the first call and again after a failure."""

    def __init__(self, address: tuple[str, int], timeout_s: float = 2.0):
        self._address = address
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._sequence = 0

    def call(self, service: str, method: str, *arguments: Any) -> Any:
        """Returns what the method returns; `arguments` are those of its fields 1, 2, ….

        Raises:
          OSError: the server can't be reached, is gone, or answers nonsense.
          ThriftError: it refused.
        """
        try:
            return self._call(service, method, arguments)
        except OSError:
            self.close()
            raise

    def _call(self, service: str, method: str, arguments: Sequence[Any]) -> Any:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sequence = (self._sequence + 1) & 0x7FFFFFFF
        name = f"{service}:{method}".encode()
        head = struct.pack("!Ii", VERSION | CALL, len(name)) + name + struct.pack("!i", self._sequence)
        self._socket.sendall(head + _encode_struct(dict(enumerate(arguments, start=1))))
        version, length = struct.unpack("!Ii", self._read(8))
        self._read_bytes(length)
        (sequence,) = struct.unpack("!i", self._read(4))
        if version & 0xFFFF0000 != VERSION or sequence != self._sequence:
            raise ConnectionError(f"{address_text(*self._address)} doesn't speak Thrift's binary protocol")
        result = self._read_value(STRUCT)
        if version & 0xFF != REPLY:  # the server knows no such service or method
            raise ThriftError(f"{method} failed: {result.get(1, b'').decode(errors='replace')}")
        failed = next((value for number, value in result.items() if number != 0), None)
        if failed is not None:
            raise ThriftError(f"{method} failed with code {failed.get(1)}")
        return result.get(0)

    def _read(self, count: int) -> bytes:
        assert self._socket is not None
        data = bytearray()
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise ConnectionError("the server closed the connection")
            data += part
        return bytes(data)

    def _read_bytes(self, length: int) -> bytes:
        if not 0 <= length <= STRING_BYTES_MAX:
            raise ConnectionError(f"a string of {length} bytes in an answer")
        return self._read(length)

    def _read_value(self, kind: int, depth: int = 8) -> Any:
        if depth == 0:
            raise ConnectionError("an answer is nested too deep")
        if kind == BOOL:
            return self._read(1) != b"\0"
        if kind in _FORMATS:
            return struct.unpack(_FORMATS[kind], self._read(struct.calcsize(_FORMATS[kind])))[0]
        if kind == STRING:
            return self._read_bytes(struct.unpack("!i", self._read(4))[0])
        if kind == STRUCT:
            fields = {}
            while (field := self._read(1)[0]) != 0:
                (number,) = struct.unpack("!h", self._read(2))
                fields[number] = self._read_value(field, depth - 1)
            return fields
        if kind in (LIST, SET):
            item, count = struct.unpack("!bi", self._read(5))
            return [self._read_value(item, depth - 1) for _ in range(self._count(count))]
        if kind == MAP:
            key, item, count = struct.unpack("!bbi", self._read(6))
            pairs = range(self._count(count))
            return {self._read_value(key, depth - 1): self._read_value(item, depth - 1) for _ in pairs}
        raise ConnectionError(f"a value of the unknown type {kind} in an answer")

    def _count(self, count: int) -> int:
        if not 0 <= count <= ITEMS_MAX:
            raise ConnectionError(f"{count} items in an answer")
        return count

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

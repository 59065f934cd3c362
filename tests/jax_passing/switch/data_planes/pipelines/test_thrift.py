"""Thrift's binary protocol against bytes written out by hand, and against servers that misbehave."""

import socket
import struct
import threading

import pytest

from jax_passing.switch.data_planes.pipelines.thrift import ThriftClient, ThriftError

NAME = b"standard:sum"


@pytest.fixture
def serve():
    """Answers each connection with the given bytes after one request, and keeps the request."""
    listener = socket.create_server(("127.0.0.1", 0))
    clients, requests = [], []

    def run(*answers):
        def work():
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    requests.append(connection.recv(65536))
                    connection.sendall(answer)

        threading.Thread(target=work, daemon=True).start()
        clients.append(ThriftClient(listener.getsockname()[:2], timeout_s=30.0))
        return clients[-1], requests

    yield run
    for client in clients:
        client.close()
    listener.close()


def reply(body, kind=2, sequence=1):
    return struct.pack("!Ii", 0x80010000 | kind, len(NAME)) + NAME + struct.pack("!i", sequence) + body


def test_arguments_as_the_specification_writes_them(serve):
    client, requests = serve(reply(b"\0"))
    assert client.call("standard", "sum", 7, "ab", [b"x", b"yz"], {2: -1}, True, []) is None
    fields = b"".join(
        [
            b"\x08\x00\x01" + b"\x00\x00\x00\x07",
            b"\x0b\x00\x02" + b"\x00\x00\x00\x02ab",
            b"\x0f\x00\x03" + b"\x0b\x00\x00\x00\x02" + b"\x00\x00\x00\x01x" + b"\x00\x00\x00\x02yz",
            b"\x0c\x00\x04" + b"\x08\x00\x02" + b"\xff" * 4 + b"\x00",
            b"\x02\x00\x05" + b"\x01",
            b"\x0f\x00\x06" + b"\x0b\x00\x00\x00\x00",
            b"\x00",
        ]
    )
    assert requests == [reply(fields, kind=1)]


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"\x08\x00\x00\xff\xff\xff\xfe\x00", -2),
        (b"\x0a\x00\x00" + struct.pack("!q", 1 << 40) + b"\x00", 1 << 40),
        (b"\x0b\x00\x00\x00\x00\x00\x02ab\x00", b"ab"),
        (b"\x02\x00\x00\x01\x00", True),
        (b"\x0f\x00\x00\x06\x00\x00\x00\x02\x00\x01\x00\x02\x00", [1, 2]),
        (b"\x0c\x00\x00\x0b\x00\x01\x00\x00\x00\x01a\x08\x00\x02\x00\x00\x00\x05\x00\x00", {1: b"a", 2: 5}),
        (b"\x0d\x00\x00\x0b\x03\x00\x00\x00\x01\x00\x00\x00\x01k\x07\x00", {b"k": 7}),
    ],
)
def test_answers_of_every_type(serve, body, value):
    client, _ = serve(reply(body))
    assert client.call("standard", "sum") == value


def test_a_refusal_has_its_code(serve):
    client, _ = serve(reply(b"\x0c\x00\x01\x08\x00\x01\x00\x00\x00\x11\x00\x00"))
    with pytest.raises(ThriftError, match="sum failed with code 17"):
        client.call("standard", "sum")


def test_an_unknown_method_says_so(serve):
    client, _ = serve(reply(b"\x0b\x00\x01\x00\x00\x00\x04what\x00", kind=3))
    with pytest.raises(ThriftError, match="what"):
        client.call("standard", "sum")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        reply(b"\0")[:10],
        reply(b"\0", sequence=2),
        reply(b"\x0b\x00\x00\x7f\xff\xff\xff"),
        reply(b"\x0b\x00\x00\xff\xff\xff\xff"),
        reply(b"\x0f\x00\x00\x03\x7f\xff\xff\xff"),
        reply(b"\x0c\x00\x00" * 20),
        reply(b"\x63\x00\x00"),
    ],
)
def test_nonsense_breaks_the_connection_and_the_next_call_makes_another(serve, answer):
    client, _ = serve(answer, reply(b"\x02\x00\x00\x01\x00", sequence=2))
    with pytest.raises(OSError, match=r"\w"):
        client.call("standard", "sum")
    assert client.call("standard", "sum") is True


def test_nobody_there():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
    with pytest.raises(OSError, match="refused"):
        ThriftClient(address).call("standard", "sum")

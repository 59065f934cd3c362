"""The server of metrics answers whoever asks properly, and nobody can make it wait or grow."""

import asyncio
import contextlib
import os
import socket
import urllib.request

import pytest

from jax_passing import http_server
from jax_passing.errors import ConfigError
from jax_passing.http_server import CONNECTIONS_MAX, HttpServer, Response


async def hello(accept):
    return Response(f"hello, {accept}\n".encode())


async def fault(accept):
    raise ZeroDivisionError


def served(*conversations):
    """Serves two pages, and returns what these coroutines return that are given the address."""

    async def run():
        listener = http_server.listen("127.0.0.1", 0)
        address = listener.getsockname()
        server = HttpServer({"/hello": hello, "/fault": fault})
        await server.serve(listener)
        try:
            return [await asyncio.wait_for(one(address), 30) for one in conversations]
        finally:
            server.close()

    return asyncio.run(run())


def asking(request):
    async def ask(address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer.decode()

    return ask


def test_get_and_head():
    get, head, query = served(
        asking(b"GET /hello HTTP/1.1\r\nHost: a\r\nAccept: text/x\r\n\r\n"),
        asking(b"HEAD /hello HTTP/1.1\r\n\r\n"),
        asking(b"GET /hello?a=b HTTP/1.0\r\naccept:  y \r\n\r\n"),
    )
    assert get.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 14\r\n")
    assert get.endswith("\r\n\r\nhello, text/x\n")
    assert "Content-Length: 8\r\n" in head
    assert head.endswith("\r\n\r\n")
    assert query.endswith("hello, y\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"POST /hello HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        (b"\x00\xff\r\n\r\n", "405 Method Not Allowed"),
        (b"GET /hello HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n", "431 Request Header Fields Too Large"),
    ],
)
def test_requests_that_make_no_sense(request_, status):
    (answer,) = served(asking(request_))
    assert answer.startswith(f"HTTP/1.1 {status}\r\n"), answer


def test_a_fault_of_ours_costs_one_answer(caplog):
    answers = served(asking(b"GET /fault HTTP/1.1\r\n\r\n"), asking(b"GET /hello HTTP/1.1\r\n\r\n"))
    assert answers[0].startswith("HTTP/1.1 500 ")
    assert "ZeroDivisionError" in caplog.text
    assert answers[1].startswith("HTTP/1.1 200 ")


def test_who_says_nothing_is_hung_up_on(monkeypatch):
    monkeypatch.setattr(http_server, "REQUEST_S", 0.2)
    assert served(asking(b"GET /hello HT")) == [""]


def test_who_doesnt_read_the_answer_is_hung_up_on(monkeypatch):
    monkeypatch.setattr(http_server, "REQUEST_S", 0.5)

    async def long(accept):
        return Response(b"x" * 48 * 1024)  # asyncio keeps the rest of so few without holding up who writes

    async def run():
        listener = http_server.listen("127.0.0.1", 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the accepted connections have it as well
        server = HttpServer({"/long": long})
        await server.serve(listener)
        with socket.socket() as caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
            files = len(os.listdir("/proc/self/fd"))
            caller.connect(listener.getsockname())
            caller.sendall(b"GET /long HTTP/1.1\r\n\r\n")
            await asyncio.sleep(0.2)
            assert len(os.listdir("/proc/self/fd")) == files + 1
            for _ in range(50):
                await asyncio.sleep(0.1)
                if len(os.listdir("/proc/self/fd")) == files:
                    break
            else:
                pytest.fail("the connection is open still")
            server.close()

    asyncio.run(run())


def test_connections_are_few_and_the_oldest_makes_room():
    async def crowd(address):
        several = [await asyncio.open_connection(*address) for _ in range(CONNECTIONS_MAX + 1)]
        (first, _), (second, answered) = several[:2]
        assert await first.read() == b""  # the last one has its place
        answered.write(b"GET /hello HTTP/1.1\r\n\r\n")
        assert (await second.read()).startswith(b"HTTP/1.1 200 ")
        for _, writer in several:
            writer.close()

    async def crowd_that_stays(address):
        several = [await asyncio.open_connection(*address) for _ in range(CONNECTIONS_MAX)]
        answer = await asking(b"GET /hello HTTP/1.1\r\n\r\n")(address)
        for _, writer in several:
            writer.close()
        return answer

    assert served(crowd, crowd_that_stays)[1].startswith("HTTP/1.1 200 ")


def test_nobody_makes_room_while_we_owe_it_an_answer():
    async def run():
        may_answer = asyncio.Event()

        async def slow(accept):
            await may_answer.wait()
            return await hello(accept)

        listener = http_server.listen("127.0.0.1", 0)
        server = HttpServer({"/slow": slow})
        await server.serve(listener)
        address = listener.getsockname()
        wait = [asyncio.create_task(asking(b"GET /slow HTTP/1.1\r\n\r\n")(address)) for _ in range(CONNECTIONS_MAX)]
        await asyncio.sleep(0.3)
        reader, writer = await asyncio.open_connection(*address)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        may_answer.set()
        answers = await asyncio.wait_for(asyncio.gather(*wait), 10)
        server.close()
        return answers

    assert all(answer.startswith("HTTP/1.1 200 ") for answer in asyncio.run(run()))


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"Can't tell metrics at 127\.0\.0\.1:{port}: Address already in use\."):
            http_server.listen("127.0.0.1", port)
    with pytest.raises(ConfigError, match="not-a-name.invalid"):
        http_server.listen("not-a-name.invalid", 0)


def test_a_real_client():
    async def ask(address):
        url = "http://{}:{}/hello".format(*address)
        return await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read())

    assert served(ask) == [b"hello, \n"]

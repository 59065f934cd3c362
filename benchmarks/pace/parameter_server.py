"""A parameter server for asynchronous updates: a host pushes what its step changed, takes the newest parameters, and
never waits for others (Dean et al., Large scale distributed deep networks, NeurIPS 2012; Recht et al., Hogwild, 2011).

    python benchmarks/pace/parameter_server.py 10.83.0.5:47200

It is here to compare with: how stale an update is has no bound, and no two runs have the same bits. A message is a line
of JSON, and the bytes of float32 that it announces.
"""

import socket
import sys
import threading
from collections import Counter
from typing import Any, BinaryIO

import msgspec
import numpy as np

WAIT_S = 60.0


class ParameterServerError(Exception):
    """The server is lost, or refused a message."""


class Header(msgspec.Struct, omit_defaults=True):
    """A message.

    Attributes:
      do: of a host: "begin" a training with these parameters, "push" an update; "" in answers.
      elements: float32 numbers that follow.
      version: number of updates in the parameters that an answer brings; or those that a push was computed from had.
      staleness: for each number of updates by others that came in between, how many pushes found it.
      error: why nothing was done.
    """

    do: str = ""
    elements: int = 0
    version: int = 0
    staleness: dict[int, int] = {}
    error: str = ""


def send(stream: BinaryIO, header: Header, numbers: np.ndarray | None = None) -> None:
    header.elements = 0 if numbers is None else numbers.size
    stream.write(msgspec.json.encode(header) + b"\n")
    if numbers is not None:
        stream.write(np.ascontiguousarray(numbers, np.float32).tobytes())
    stream.flush()


def receive(stream: BinaryIO) -> tuple[Header, np.ndarray]:
    """Raises EOFError if the other end is gone, msgspec.DecodeError if it doesn't speak this protocol."""
    line = stream.readline(1 << 20)
    if not line:
        raise EOFError
    header = msgspec.json.decode(line, type=Header)
    received = stream.read(header.elements * 4)
    if len(received) < header.elements * 4:
        raise EOFError
    return header, np.frombuffer(received, np.float32)


class Server:
    """Holds the parameters. Each host has a connection, and a thread here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._params = np.zeros(0, np.float32)
        self._version = 0
        self._staleness: Counter[int] = Counter()

    def answer(self, header: Header, numbers: np.ndarray) -> tuple[Header, np.ndarray | None]:
        with self._lock:
            match header.do:
                case "begin":
                    self._params, self._version, self._staleness = numbers.copy(), 0, Counter()
                case "push" if numbers.size not in (0, self._params.size):  # 0: it only wants the parameters
                    return Header(error=f"an update of {numbers.size} elements for {self._params.size}"), None
                case "push" if not np.isfinite(numbers).all():
                    return Header(error="an update with elements that aren't finite"), None
                case "push" if numbers.size:
                    self._staleness[self._version - header.version] += 1
                    self._version += 1
                    self._params = self._params + numbers
                case "push":
                    pass
                case other:
                    return Header(error=f"an unknown request {other!r}"), None
            return Header(version=self._version, staleness=dict(self._staleness)), self._params

    def serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as stream:
            while True:
                try:
                    send(stream, *self.answer(*receive(stream)))
                except (EOFError, OSError, msgspec.DecodeError):
                    return


class Client:
    """A host's connection to the server, for a pytree of float32 parameters.

    Attributes:
      staleness: how many pushes of all hosts were behind by how many updates.
    """

    def __init__(self, address: str, params: Any) -> None:
        from jax.flatten_util import ravel_pytree

        _, self._unravel = ravel_pytree(params)
        self._ravel = lambda tree: np.asarray(ravel_pytree(tree)[0])
        self._address = address
        host, port = address.rsplit(":", 1)
        try:
            self._socket = socket.create_connection((host, int(port)), WAIT_S)
        except OSError as error:
            raise ParameterServerError(f"no parameter server at {address} ({error}): start it first") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rwb")
        self._version = 0
        self.staleness: dict[int, int] = {}

    def begin(self, params: Any) -> Any:
        return self._ask(Header("begin"), self._ravel(params))

    def newest(self) -> Any:
        return self._ask(Header("push"), np.zeros(0, np.float32))

    def push(self, update: Any) -> Any:
        """Returns the newest parameters."""
        return self._ask(Header("push", version=self._version), self._ravel(update))

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _ask(self, header: Header, numbers: np.ndarray) -> Any:
        try:
            send(self._stream, header, numbers)
            answer, params = receive(self._stream)
        except (EOFError, OSError, msgspec.DecodeError) as error:
            what = str(error) or "it closed the connection"
            raise ParameterServerError(f"the parameter server at {self._address} is lost: {what}") from error
        if answer.error:
            raise ParameterServerError(f"the parameter server at {self._address} refused {answer.error}")
        self._version, self.staleness = answer.version, answer.staleness
        return self._unravel(params)


def main() -> None:
    host, port = sys.argv[1].rsplit(":", 1)
    server = Server()
    with socket.create_server((host, int(port))) as listener:
        print(f"listening on {host}:{listener.getsockname()[1]}", flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=server.serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()

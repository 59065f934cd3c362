"""Sends each datagram back to its sender: `star_echo.py HOST:PORT`. It says so once it listens."""

import socket
import sys

SO_RCVBUFFORCE = 33
BUFFER_BYTES = 4 << 20  # of a socket: the default is too small for 64 KB of each host in small datagrams


def make_roomy(udp: socket.socket) -> None:
    """Lets a socket hold as much as ours do. Needs root."""
    udp.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)


def main() -> None:
    host, port = sys.argv[1].split(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as echo:
        make_roomy(echo)
        echo.bind((host, int(port)))
        print("listening on", sys.argv[1], flush=True)
        buffer = memoryview(bytearray(65536))
        while True:
            size, sender = echo.recvfrom_into(buffer)
            echo.sendto(buffer[:size], sender)


if __name__ == "__main__":
    main()

"""Links that lose, repeat and delay frames: `python bad_link.py SEED LOSS REPEAT DELAY DEVICE,DEVICE…`

Every pair of devices is one link; what one end receives, the other one sends. LOSS, REPEAT and DELAY are probabilities:
a delayed frame is overtaken by those of the next milliseconds; a repeated one comes a second time, up to 0.3 s later,
when its slot mostly holds another chunk.
"""

import heapq
import random
import select
import socket
import sys
import time
from contextlib import suppress

ETH_P_ALL = 0x0003
DELAY_S = 0.003  # at most
REPEAT_S = 0.3
BATCH = 32


def open_device(name: str) -> socket.socket:
    device = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    device.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    device.bind((name, ETH_P_ALL))
    device.setblocking(False)
    return device


def main(seed: int, loss: float, repeat: float, delay: float, *links: str) -> None:
    faults = random.Random(seed)
    far: dict[socket.socket, socket.socket] = {}
    for link in links:
        one, other = (open_device(name) for name in link.split(","))
        far |= {one: other, other: one}
    late: list[tuple[float, int, socket.socket, bytes]] = []
    number = 0
    print("ready", flush=True)
    while True:
        timeout = max(0.0, late[0][0] - time.monotonic()) if late else None
        for near in select.select(list(far), [], [], timeout)[0]:
            for _ in range(BATCH):
                try:
                    frame, address = near.recvfrom(65536)
                except BlockingIOError:
                    break
                if address[2] == socket.PACKET_OUTGOING or faults.random() < loss:
                    continue
                waits = [DELAY_S * faults.random() if faults.random() < delay else 0.0]
                if faults.random() < repeat:
                    waits.append(REPEAT_S * faults.random())
                for wait_s in waits:
                    if wait_s:
                        number += 1
                        heapq.heappush(late, (time.monotonic() + wait_s, number, far[near], frame))
                    else:
                        send(far[near], frame)
        while late and late[0][0] <= time.monotonic():
            *_, device, frame = heapq.heappop(late)
            send(device, frame)


def send(device: socket.socket, frame: bytes) -> None:
    with suppress(OSError):  # a full queue, or a device that goes down: lost
        device.send(frame)


if __name__ == "__main__":
    main(int(sys.argv[1]), *map(float, sys.argv[2:5]), *sys.argv[5:])

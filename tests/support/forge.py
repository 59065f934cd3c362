"""Contributions that their sender has no right to make: `python forge.py HOST PORT JOB EPOCH WORKERS LANES`, endless.

Every field is right but one, in turns: job, epoch, worker, slot, the source address (this machine's), the type, or the
length. The sequences are far ahead, so that a single one that is believed spoils the sums.
"""

import itertools
import socket
import struct
import sys
import time

PAUSE_S = 0.001


def main(host: str, port: int, job: int, epoch: int, workers: int, lanes: int) -> None:
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for number in itertools.count():
        fields = {
            "kind": 1,
            "job": job,
            "epoch": epoch,
            "worker": number % workers,
            "slot": number % 128,
            "count": lanes,
        }
        match number % 8:
            case 0:
                fields["job"] = job + 1
            case 1:
                fields["epoch"] = epoch + 1
            case 2:
                fields["worker"] = workers
            case 3:
                fields["slot"] = 60_000
            case 4:
                fields["kind"] = 2
            case 5:
                fields["count"] = lanes - 1
            case _:
                pass  # but for the source address
        head = struct.pack(
            "!BBBBHHHHIBBH",
            *(0x9A, 1, fields["kind"], 0, fields["job"], fields["epoch"], fields["worker"], fields["slot"]),
            *(1 << 30, number % 2, 1, fields["count"]),
        )
        sender.sendto(head + b"\x7f" * (4 * fields["count"]), (host, port))
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

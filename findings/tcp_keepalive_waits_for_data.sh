#!/bin/bash
# Linux sends TCP keepalive probes only while nothing is unacknowledged. Whoever relies on SO_KEEPALIVE to notice that a
# machine has died does so within seconds on a connection that is silent; but if there was one more byte to send, as a
# heartbeat, no probe is sent any more, and the connection lasts until the retransmissions end (tcp_retries2: a quarter
# of an hour). So heartbeats over TCP switch keepalive off just when it is needed. TCP_USER_TIMEOUT bounds both. Seen with
# Linux 6.x. Our control connections keep a lease of their own instead, at both ends, which a stopped process doesn't
# outlive either (its kernel answers keepalive probes).
#
# Needs root, for a network namespace, which it removes.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "run this as root: it makes a network namespace" >&2; exit 1; }

folder=$(mktemp -d)
name=keepalive-$$
trap 'ip netns delete "$name" 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
uname -sr
python3 --version

cat >ends.py <<'PYTHON'
import select, socket, subprocess, sys, time

namespace = sys.argv[1]
IDLE, INTERVAL, PROBES, WAIT_S = 1, 1, 3, 15


def seconds_until_lost(*, sends, user_timeout_ms=0):
    """Lets nobody answer an open connection any more. Returns when it is lost; None: it isn't within WAIT_S."""
    command = "import socket; socket.setdefaulttimeout(60); s = socket.create_server(('10.213.7.2', 4000)); c = s.accept()[0]; print(flush=True); c.recv(9); input()"
    other = subprocess.Popen(
        ["ip", "netns", "exec", namespace, sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    until = time.monotonic() + 10
    while True:
        try:
            ours = socket.create_connection(("10.213.7.2", 4000), timeout=1)
            break
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
    other.stdout.readline()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, IDLE), (socket.TCP_KEEPINTVL, INTERVAL), (socket.TCP_KEEPCNT, PROBES)):
        ours.setsockopt(socket.IPPROTO_TCP, option, value)
    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_timeout_ms)
    there = ["ip", "-n", namespace, "address"]
    subprocess.run([*there, "del", "10.213.7.2/24", "dev", "ka-there"], check=True)  # as a machine that is gone
    began = time.monotonic()
    if sends:
        ours.send(b"x")
    ours.settimeout(WAIT_S)
    try:
        ours.recv(1)
    except TimeoutError as error:
        lost = time.monotonic() - began if error.errno else None  # ETIMEDOUT, or our own patience
    finally:
        subprocess.run([*there, "add", "10.213.7.2/24", "dev", "ka-there"], check=True)
        other.kill()
        other.wait()
        ours.close()
    return lost


silent = seconds_until_lost(sends=False)
print(f"keepalive, nothing sent:                    lost after {silent and round(silent, 1)} s")
sending = seconds_until_lost(sends=True)
print(f"keepalive, one byte sent:                   lost after {sending and round(sending, 1)} s (None: not within {WAIT_S} s)")
bounded = seconds_until_lost(sends=True, user_timeout_ms=4000)
print(f"keepalive, one byte sent, TCP_USER_TIMEOUT: lost after {bounded and round(bounded, 1)} s")
sys.exit(not (silent and silent < 10 and sending is None and bounded and bounded < 10))
PYTHON

ip netns add "$name"
ip link add ka-here type veth peer name ka-there netns "$name"
ip address add 10.213.7.1/24 dev ka-here
ip link set ka-here up
ip -n "$name" address add 10.213.7.2/24 dev ka-there
ip -n "$name" link set ka-there up
# A router would stand between: packets go out whether or not anybody is there.
ip neighbour replace 10.213.7.2 dev ka-here nud permanent lladdr \
  "$(ip -n "$name" -brief link show ka-there | awk '{print $3}')"
timeout 120 python3 ends.py "$name"

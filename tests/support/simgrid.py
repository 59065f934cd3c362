"""SimGrid 3.32 finds how long flows take, to compare with: Debian 12 has it as python3-simgrid, for its Python 3.11.

As a program, which `durations_s` runs, since SimGrid knows one network in the life of a process, this reads problems as
JSON from its standard input, and writes how many seconds each one takes. The first argument is the path of SimGrid's
extension module.
"""

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

DEBIAN_PACKAGES = Path("/usr/lib/python3/dist-packages")  # a virtual environment doesn't look here
SCALE = 1 << 40  # SimGrid counts whole bytes, so that a sum of one byte is simulated as one of so many
SETTINGS = (
    "network/model:CM02",  # max-min fair shares, without LV08's corrections for TCP
    "network/TCP-gamma:0",  # no window bounds a flow
    "network/weight-S:0",  # shares don't depend on latencies
    "network/crosstraffic:0",  # what comes back takes nothing of a link
    "contexts/factory:thread",
)
UNBOUNDED_BYTES_PER_S = 1e18


def find() -> Path | None:
    """Returns the path of SimGrid's extension module for this Python; None if there is none."""
    installed = importlib.util.find_spec("simgrid")
    if installed is not None and installed.origin is not None:
        return Path(installed.origin)
    # The short ".so" may be for any Python.
    names = [f"simgrid{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES if suffix != ".so"]
    return next((DEBIAN_PACKAGES / name for name in names if (DEBIAN_PACKAGES / name).is_file()), None)


def durations_s(problems: list[Any]) -> list[float]:
    """Returns what SimGrid finds for problems: capacities and flows, as fair_shares.duration_s takes them."""
    numbered = []
    for capacities, flows in problems:
        numbers = {name: number for number, name in enumerate(capacities)}
        sizes = [(round(size * SCALE), [numbers[name] for name in route]) for size, route in flows]
        numbered.append((list(capacities.values()), sizes))
    command = [sys.executable, "-I", __file__, str(find())]
    ended = subprocess.run(command, input=json.dumps(numbered), capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    return [time_s / SCALE for time_s in json.loads(ended.stdout)]


def main() -> None:
    problems = json.load(sys.stdin)
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # SimGrid writes its own messages to the standard output
    spec = importlib.util.spec_from_file_location("simgrid", sys.argv[1])
    assert spec is not None
    assert spec.loader is not None
    sg: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sg)
    engine = sg.Engine(["simulate", "--log=root.thres:error", *(f"--cfg={setting}" for setting in SETTINGS)])
    # In a star zone each node has a list of links of its own on the way to all others. So each flow gets a node, whose
    # links are those that the flow goes through, and all of them go to one sink: no table of routes between hosts.
    zone = sg.NetZone.create_star_zone("zone")
    sink = zone.create_host("sink", 1.0)
    beyond = zone.create_link("beyond", UNBOUNDED_BYTES_PER_S)
    zone.add_route(sink.netpoint, None, None, None, [sg.LinkInRoute(beyond)], True)
    flows: list[list[tuple[Any, int]]] = []
    for number, (capacities, sizes_and_routes) in enumerate(problems):
        links = [zone.create_link(f"{number}-{index}", capacity) for index, capacity in enumerate(capacities)]
        flows.append([])
        for index, (size_bytes, route) in enumerate(sizes_and_routes):
            node = zone.create_host(f"{number}-flow-{index}", 1.0)
            zone.add_route(node.netpoint, None, None, None, [sg.LinkInRoute(links[one]) for one in route], False)
            flows[-1].append((node, size_bytes))
    zone.seal()
    times_s = []

    def run_all() -> None:
        for own in flows:  # one after the other: they share nothing but the clock
            began_s = sg.Engine.clock
            comms = [sg.Comm.sendto_async(node, sink, size_bytes) for node, size_bytes in own]
            if comms:
                sg.Comm.wait_all(comms)
            times_s.append(sg.Engine.clock - began_s)

    sg.Actor.create("all", sink, run_all)
    engine.run()
    json.dump(times_s, results)
    results.flush()


if __name__ == "__main__":
    main()

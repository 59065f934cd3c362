"""A process of its own runs this: SimGrid knows one network in the life of a process.

It reads parts of problems as JSON from its standard input, and writes how many seconds each one takes as JSON to its
standard output. Each has the capacities of its resources in bytes a second, and flows: a size in bytes, and the indices
of the resources that it goes through. The first argument is the path of SimGrid's extension module.
"""

import importlib.util
import json
import os
import sys
from typing import Any

SETTINGS = (
    "network/model:CM02",  # max-min fair shares, without LV08's corrections for TCP
    "network/TCP-gamma:0",  # no window bounds a flow
    "network/weight-S:0",  # shares don't depend on latencies
    "network/crosstraffic:0",  # what comes back takes nothing of a link
    "contexts/factory:thread",
)
UNBOUNDED_BYTES_PER_S = 1e18


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("simgrid", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parts = json.load(sys.stdin)
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # SimGrid writes its own messages to the standard output
    sg = load(sys.argv[1])
    engine = sg.Engine(["simulate", "--log=root.thres:error", *(f"--cfg={setting}" for setting in SETTINGS)])
    # In a star zone each node has a list of links of its own on the way to all others. So each flow gets a node, whose
    # links are those that the flow goes through, and all of them go to one sink: no table of routes between hosts.
    zone = sg.NetZone.create_star_zone("zone")
    sink = zone.create_host("sink", 1.0)
    beyond = zone.create_link("beyond", UNBOUNDED_BYTES_PER_S)
    zone.add_route(sink.netpoint, None, None, None, [sg.LinkInRoute(beyond)], True)
    flows: list[list[tuple[Any, int]]] = []
    for number, (capacities, sizes_and_routes) in enumerate(parts):
        links = [zone.create_link(f"{number}-{index}", capacity) for index, capacity in enumerate(capacities)]
        flows.append([])
        for index, (size_bytes, route) in enumerate(sizes_and_routes):
            node = zone.create_host(f"{number}-flow-{index}", 1.0)
            zone.add_route(node.netpoint, None, None, None, [sg.LinkInRoute(links[one]) for one in route], False)
            flows[-1].append((node, size_bytes))
    zone.seal()
    durations_s = []

    def run_all() -> None:
        for own in flows:  # one after the other: they share nothing but the clock
            began_s = sg.Engine.clock
            comms = [sg.Comm.sendto_async(node, sink, size_bytes) for node, size_bytes in own]
            if comms:
                sg.Comm.wait_all(comms)
            durations_s.append(sg.Engine.clock - began_s)

    sg.Actor.create("all", sink, run_all)
    engine.run()
    json.dump(durations_s, results)
    results.flush()


if __name__ == "__main__":
    main()

"""Finds how long flows take that share links fairly (max-min): a fluid model, without packets.

Rates come by progressive filling (Bertsekas and Gallager, Data Networks, second edition, 1992, section 6.5.2). They
hold until the next flow ends, and are then found anew. A slow test compares the times with SimGrid's.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Resource = tuple[str, Hashable]  # what it is, as users are told, and which one
Flow = tuple[float, Sequence[Resource]]  # a size, and what it goes through at once, at the same rate

ALIKE = 1 + 1e-12  # what differs by less happens at once


def duration_s(capacities: Mapping[Resource, float], flows: Sequence[Flow]) -> float:
    """Returns how many seconds it takes until the last of the flows has ended, all of which begin together.

    Every step adds in the same order wherever it runs, as `strategy="auto"` needs the same bits on all hosts: no
    product of matrices, whose order depends on the processor.
    """
    numbers = {name: number for number, name in enumerate(capacities)}
    links = np.array([numbers[name] for _, route in flows for name in route], np.intp)
    users = np.repeat(np.arange(len(flows)), [len(route) for _, route in flows])
    capacity = np.array(list(capacities.values()))
    left = np.array([size for size, _ in flows])
    now_s = 0.0
    while len(left):
        rates = _rates(capacity, links, users, len(left))
        ends_s = left / rates
        first_s = ends_s.min()
        now_s += first_s
        stays = ends_s > first_s * ALIKE
        left = (left - rates * first_s)[stays]
        used = stays[users]
        links, users = links[used], (np.cumsum(stays) - 1)[users[used]]
    return float(now_s)


def _rates(
    capacity: NDArray[np.float64], links: NDArray[np.intp], users: NDArray[np.intp], flows: int
) -> NDArray[np.float64]:
    """Returns the rate of each flow. All grow alike until a link is full; its flows keep theirs, and others grow on.

    Args:
      capacity: of each link.
      links: for each pair of a flow and a link on its route, the link.
      users: and the flow.
      flows: their number.
    """
    rates = np.zeros(flows)
    free = capacity.copy()
    grows = np.ones(flows, bool)
    while grows.any():
        count = np.bincount(links[grows[users]], minlength=len(free))
        used = count > 0
        shares = np.full(len(free), np.inf)
        shares[used] = free[used] / count[used]
        share = shares.min()
        rates[grows] += share
        free -= share * count
        full = shares <= share * ALIKE
        grows[users[full[links]]] = False
    return rates

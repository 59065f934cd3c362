"""Hosts and switches say this to each other: packets, control messages, and the facts that both compare."""

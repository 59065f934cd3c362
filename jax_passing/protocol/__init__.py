"""What hosts and switches say to each other, and how: packets, control messages, and the facts that both compare."""

"""How primitives are lowered: on CPU, on GPU, and by host calls; in which order their sums start."""

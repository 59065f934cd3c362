"""How sums are lowered on GPUs."""

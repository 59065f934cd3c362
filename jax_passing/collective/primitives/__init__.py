"""The primitives of the sums, and how leaves share their calls."""

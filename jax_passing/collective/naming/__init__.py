"""The names of sums, alike on all hosts."""

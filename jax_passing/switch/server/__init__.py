"""The control plane as a whole, and the process that runs it."""

"""This room has the control plane as a whole, and the process that runs it."""

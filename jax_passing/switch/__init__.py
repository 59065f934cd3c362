"""Here is the switch: the control plane, and the data planes that it drives."""

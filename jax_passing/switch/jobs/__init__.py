"""This room has the jobs of a switch: admission, epochs, slots, waits."""

"""In this room a switch talks with the one above it."""

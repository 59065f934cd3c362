"""Operators of switches drain them, end jobs, and put ranks out."""

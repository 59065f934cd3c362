"""Operators of a switch say here what it admits, and what ends."""

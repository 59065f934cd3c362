"""Switches and hosts tell their metrics by HTTP, if they are asked to."""

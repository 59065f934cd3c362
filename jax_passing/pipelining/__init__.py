"""Runs the stages of a model at the same time, each on devices of its own."""

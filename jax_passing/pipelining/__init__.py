"""Stages of a model at work at once, each on devices of its own."""

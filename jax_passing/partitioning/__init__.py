"""Cuts a model into stages automatically."""

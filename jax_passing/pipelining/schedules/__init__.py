"""Holds the kinds of schedules, a file for each."""

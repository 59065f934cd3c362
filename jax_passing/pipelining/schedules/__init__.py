"""The kinds of schedules, a file each."""

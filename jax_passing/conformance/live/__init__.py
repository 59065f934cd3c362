"""The suite at a live switch: jobs that join it over a network."""

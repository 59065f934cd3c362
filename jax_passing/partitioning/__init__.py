"""A model cut into stages by itself."""

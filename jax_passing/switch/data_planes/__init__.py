"""The back ends of the DataPlane interface."""

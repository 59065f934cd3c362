"""This room has the back ends of the DataPlane interface."""

"""A switch below another one: what they say to each other."""

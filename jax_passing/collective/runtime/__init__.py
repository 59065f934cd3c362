"""How XLA reaches this process, and what it compiled."""

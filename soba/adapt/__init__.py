"""Features -> logits: one training-free method per file."""

"""Our own tiny CLIP: weights and configuration only. training/ makes them."""

"""Questions asked of the benchmark: what a setting is worth, what breaks a method, its cost."""

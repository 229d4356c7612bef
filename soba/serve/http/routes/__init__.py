"""The routes: what is asked for is read, done in a thread, and told."""

"""Durable streams over HTTP: routes, what a request may be, and how the server lives and ends."""

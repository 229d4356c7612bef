"""Streams that outlive the processes that feed them: state as a log in a database."""

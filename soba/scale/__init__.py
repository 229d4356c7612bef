"""The same work on any number of machines: a map over shards, and a merge.

A run is a folder. Its manifest fixes the shards of the input, the classes and the encoder, and with
them what every worker does: nothing else has to be told between workers. See docs/scale.md.
"""

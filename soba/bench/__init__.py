"""Datasets x methods -> result records -> tables."""

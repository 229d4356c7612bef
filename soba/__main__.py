"""`python -m soba`."""

from soba.cli import main

main()

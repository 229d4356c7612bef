"""`python -m soba.cli`."""

from soba.cli import main

main()

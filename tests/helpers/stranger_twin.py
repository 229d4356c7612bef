"""Another package's method of the same name."""

import stranger

from soba import Card


class ClassMedians(stranger.ClassMedians):
    """The same, by another author."""

    card = Card("medians")

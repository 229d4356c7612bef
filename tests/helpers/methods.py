"""The methods that a test goes through."""

from __future__ import annotations

import soba
from soba.registry import card

FROM_TEXT = [name for name in soba.list_methods() if not card(name).tunes_prompts]
TUNERS = soba.list_methods(family="tuner")
SETS_ONLY = soba.list_methods(family="transductive")

"""From and to other people's packages, a short file each; `pip install 'soba-tta[bridges]'`.

Each package is imported by the function that needs it, and not before.
"""

from soba.bridges.cleanlab import LabelError, find_label_errors
from soba.bridges.datasets import add_answers
from soba.bridges.supervision import to_classifications

__all__ = ["LabelError", "add_answers", "find_label_errors", "to_classifications"]

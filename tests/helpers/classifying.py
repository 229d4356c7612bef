"""`soba classify` as its tests run it: of four classes of icons, in batches of eight."""

import csv

from run_cli import soba_command

from soba.datasets.icons import icons

CLASSES = icons("source", per_class=1).class_names[:4]
NAMES = ",".join(CLASSES)


def classify(*arguments, classes=NAMES, code=0):
    return soba_command("classify", *arguments, "--classes", classes, "--batch", 8, code=code)


def rows(path):
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))

"""The code blocks of a page, run one after the other in one namespace, by sybil.

Python runs. In `bash` blocks lines that begin with soba run, in this process; other lines are an
error, so that such a block must be skipped with a reason. JSON, YAML and TOML must load. `text` is
what was printed: its lines were, on this machine, with about the same figures. A block that does
not run has a comment above it: <!-- skip: next "why" -->.
"""

import contextlib
import io
import json
import re
import shlex
import tomllib
from dataclasses import dataclass, field
from unittest import SkipTest

import yaml
from run_cli import soba_command
from sybil import Lexeme, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

LOADERS = {"json": json.loads, "yaml": yaml.safe_load, "toml": tomllib.loads}
FENCED = re.compile(r"^ *```(\w+)\n.*?^ *```$", re.MULTILINE | re.DOTALL)
# Four blanks behind an empty line: shell commands and drawings, as the older pages have them.
INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n)(?:(?: {4}.*)?\n)*", re.MULTILINE)
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
COMMAND = re.compile(r"^ *(?:\$ )?soba (?=[a-z])(.*)$", re.MULTILINE)


@dataclass
class Ran:
    """What came of the blocks of a page."""

    run: list = field(default_factory=list)  # languages
    skipped: dict = field(default_factory=dict)  # line -> reason
    printed: list = field(default_factory=list)  # lines


def run_page(path, replace=()):
    """Run the blocks of a page; `replace` are (what stands there, what runs in its place)."""
    ran = Ran()
    for example in _parser(ran, replace).parse(path):
        try:
            example.evaluate()
        except SkipTest as reason:
            ran.skipped[example.line] = str(reason)
    return ran


def _parser(ran, replace):
    python = PythonEvaluator()

    def replaced(example):
        text = str(example.parsed)
        for old, new in replace:
            text = text.replace(old, new)
        return text

    def run_python(example):
        lexeme = example.parsed
        example.parsed = Lexeme(replaced(example), lexeme.offset, lexeme.line_offset)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            python(example)
        ran.printed += out.getvalue().splitlines()
        ran.run.append("python")

    def run_bash(example):
        for line in replaced(example).replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                assert words[0] == "soba", f"{example.path}:{example.line}: skip it, or soba only"
                ran.printed += soba_command(*words[1:]).splitlines()
        ran.run.append("bash")

    def load(example):
        LOADERS[example.region.lexemes["arguments"]](example.parsed)
        ran.run.append(example.region.lexemes["arguments"])

    def compare(example):
        for line in filter(str.strip, example.parsed.splitlines()):
            assert any(_alike(line, other) for other in ran.printed), f"not printed: {line}"
        ran.run.append("text")

    def refuse(example):
        raise AssertionError(f"{example.path}:{example.line}: neither run nor skipped")

    kinds = {"python": run_python, "bash": run_bash, "text": compare, "sql": refuse}
    kinds |= dict.fromkeys(LOADERS, load)
    return Sybil([*(CodeBlockParser(*kind) for kind in kinds.items()), SkipParser()])


def _alike(said, printed):
    """The same words, and figures within a point or 3%: machines round otherwise."""
    if NUMBER.sub("#", said).split() != NUMBER.sub("#", printed).split():
        return False
    pairs = zip(NUMBER.findall(said), NUMBER.findall(printed), strict=True)
    return all(abs(float(a) - float(b)) <= max(1.0, 0.03 * abs(float(b))) for a, b in pairs)


def languages(path):
    """The languages of all fenced blocks, in their order."""
    return [block[1] for block in FENCED.finditer(path.read_text(encoding="utf-8"))]


def indented(path):
    """The indented blocks of a page, fenced ones left out."""
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    return INDENTED.findall(text)


def commands(path):
    """The words of every soba command that stands on a line of its own."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in COMMAND.findall(text):
        try:
            yield shlex.split(line, comments=True)
        except ValueError:  # prose, with an apostrophe
            continue

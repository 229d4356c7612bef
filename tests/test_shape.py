"""What reads well stays small: no module over 400 lines, no function body over 60."""

import ast
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent
ROOMS = ("soba", "perf", "training", "tests")
MODULES = [path for room in ROOMS for path in (HOUSE / room).rglob("*.py")]
MODULE_LINES, BODY_LINES = 400, 60


@pytest.mark.parametrize("path", sorted(MODULES), ids=lambda path: str(path.relative_to(HOUSE)))
def test_modules_and_functions_are_small(path):
    source = path.read_text(encoding="utf-8")
    lines = source.count("\n")
    assert lines <= MODULE_LINES
    long = {name: lines for name, lines in body_lines(source).items() if lines > BODY_LINES}
    assert not long, f"function bodies over {BODY_LINES} lines: {long}"


def body_lines(source):
    """(name, line) -> lines of each function, from the first after its docstring to its end."""
    lines = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            statements = node.body[ast.get_docstring(node) is not None :]
            at = node.name, node.lineno
            lines[at] = node.end_lineno - statements[0].lineno + 1 if statements else 0
    return lines


def test_the_count_leaves_out_signature_and_docstring():
    source = '''
def one(
    a: int,
    b: int,
) -> int:
    """Says what it does.

    At length.
    """
    c = a

    return c + b


class Some:
    async def short(self): return 1

    def documented(self):
        """Nothing but this."""


class Other:
    def short(self):
        return (
            1
        )
'''
    counted = {("one", 2): 3, ("short", 16): 1, ("documented", 18): 0, ("short", 23): 3}
    assert body_lines(source) == counted

"""Entries, files and lines of the package, by room, with and without documentation.

python benchmarks/package_size.py [FOLDER]            # FOLDER: another checkout's combemb/, to compare with
"""

import ast
import io
import statistics
import sys
import tokenize
from pathlib import Path

SPACE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def count(path: Path) -> tuple[int, int, int]:
    """Return the lines of code, of docstrings, and all lines of a file."""
    text, docs, code = path.read_text(), set[int](), set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docs |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SPACE:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - docs), len(docs), text.count("\n")


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "combemb"
    files = {path.relative_to(root): count(path) for path in sorted(root.rglob("*.py"))}
    lines = {path: n for path, (_, _, n) in files.items() if n}
    largest = max(lines, key=lambda path: lines[path])
    print(f"{sum(entry.name != '__pycache__' for entry in root.iterdir())} entries, {len(lines)} files with lines")
    print(f"largest file {largest} ({lines[largest]}), median {statistics.median(lines.values()):g}")
    print(f"{'':14}{'code':>8}{'docs':>8}{'all':>8}")
    for room in ["", *sorted({path.parts[0] for path in files})]:
        sums = [
            sum(part) for part in zip(*(n for path, n in files.items() if room in ("", path.parts[0])), strict=True)
        ]
        print(f"{room or 'the package':14}" + "".join(f"{n:8,}" for n in sums))


if __name__ == "__main__":
    main()

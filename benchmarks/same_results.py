"""The largest difference between new results of a benchmark and the committed ones.

python benchmarks/piles.py digits --results new.jsonl
python benchmarks/same_results.py new.jsonl benchmarks/results/piles.jsonl
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def numbers(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the results of a record by name, without its cell and its seconds."""
    for name, value in record.items():
        if isinstance(value, dict) and name != "cell":
            yield from numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and "seconds" not in name:
            yield f"{prefix}{name}", value


def main() -> None:
    new, old = ([json.loads(line) for line in Path(path).read_text().splitlines()] for path in sys.argv[1:3])
    differences = {}
    for record in new:
        before = dict(numbers(next(r for r in reversed(old) if r["cell"] == record["cell"])))
        differences |= {(str(record["cell"]), name): abs(value - before[name]) for name, value in numbers(record)}
    where = max(differences, key=lambda key: differences[key])
    print(f"{len(differences)} numbers, largest difference {differences[where]:.2g} ({where[1]} of {where[0]})")


if __name__ == "__main__":
    main()

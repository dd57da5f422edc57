"""The methods found, each quick enough for the toy data."""

import dataclasses
from pathlib import Path

from combemb import methods

NAMES = methods.names()
TRAINED = [name for name in NAMES if "epochs" in {f.name for f in dataclasses.fields(methods.get(name))}]
CODED = [name for name in NAMES if methods.get(name).task != "discovery"]
BITS = 12


def small(name: str, epochs: int = 2, **fields) -> methods.Method:
    """A method that is quick on the toy data: the fields that it has, set to small values."""
    cls = methods.get(name)
    wanted = {"bits": BITS, "epochs": epochs, "batch_size": 128, "device": "cpu"}
    known = {f.name for f in dataclasses.fields(cls)}
    return cls(**{**{key: value for key, value in wanted.items() if key in known}, **fields})


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def with_field(*choices: dict) -> list[tuple[str, dict]]:
    """Every method with every choice of a field that it has."""
    return [(name, choice) for choice in choices for name in NAMES if set(choice) <= set(small(name).get_params())]

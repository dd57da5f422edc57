"""What the texts of a command line mean: settings of a method, and files of labels."""

import ast
import dataclasses
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from combemb.learning.method import Method


def parse_settings(cls: type[Method], texts: list[str]) -> dict[str, Any]:
    """NAME=VALUE texts as fields of a method, each of its field's type.

    >>> from combemb import CombEmb
    >>> parse_settings(CombEmb, ["temperature=0.05", "pair_rules=similar", "epochs=None"])
    {'temperature': 0.05, 'pair_rules': ('similar',), 'epochs': None}
    """
    hints = get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    chosen = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set {text}: expected NAME=VALUE")
        if name not in names:
            raise ValueError(f"--set {text}: {cls.__name__} has no setting {name!r}; choose one of {', '.join(names)}")
        chosen[name] = _parse_value(name, value, hints[name])
    return chosen


def _parse_value(name: str, text: str, hint: Any) -> Any:
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if any(get_origin(kind) is tuple for kind in kinds):
        return tuple(part for part in text.split(",") if part)
    if str in kinds:
        return None if text == "None" and NoneType in kinds else text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    value = float(value) if float in kinds and type(value) is int else value
    if type(value) not in kinds:
        expected = " or ".join("None" if kind is NoneType else kind.__name__ for kind in kinds)
        raise ValueError(f"--set {name}={text}: expected {expected}")
    return value


def read_label_file(path: Path) -> np.ndarray:
    """Labels from .npy, or from text with one label per line; if all are whole numbers they stay numbers."""
    try:
        if path.suffix == ".npy":
            array: np.ndarray = np.load(path, allow_pickle=False)
            return array
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise ValueError(
            f"cannot read labels from {path}: {error}; expected .npy or text, one label per line"
        ) from error
    if all(line in {"", "-1"} or str(_int(line)) == line for line in lines):
        return np.array([int(line or -1) for line in lines], dtype=np.int64)
    return np.array([None if line in {"", "-1"} else line for line in lines], dtype=object)


def _int(text: str) -> int | None:
    return int(text) if text.isdecimal() else None

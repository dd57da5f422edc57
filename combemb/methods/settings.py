"""Settings of the methods: dataclass fields that say what they are, and their checks."""

import dataclasses
import math
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, get_args


def setting(default: Any, about: str) -> Any:
    """A hyper-parameter: a dataclass field with one line of what it is and where its default comes from."""
    return dataclasses.field(default=default, metadata={"about": about})


def require(condition: bool, message: str) -> None:
    """ValueError with this message unless the condition holds."""
    if not condition:
        raise ValueError(message)


def check_type(name: str, value: Any, hint: Any) -> None:
    """ValueError if a field does not hold what its annotation says; numbers must be finite."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    fits = {
        int: is_number and isinstance(value, Integral),
        float: is_number,
        bool: isinstance(value, bool),
        str: isinstance(value, str),
        NoneType: value is None,
    }
    wanted = {int: "a whole number", float: "a finite number", bool: "True or False", str: "text", NoneType: "None"}
    known = [kind for kind in kinds if kind in fits]
    require(
        not known or any(fits[kind] for kind in known),
        f"{name}={value!r} must be {' or '.join(wanted[kind] for kind in known)}",
    )

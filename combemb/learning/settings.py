"""Settings of methods: dataclass fields with a description and limits."""

import dataclasses
import math
from dataclasses import dataclass
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from combemb.system.errors import require

TYPE_TEXTS = {int: "a whole number", float: "a finite number", bool: "True or False", str: "text", NoneType: "None"}


@dataclass(frozen=True)
class Limits:
    """Limits on the values of a setting in addition to its type; every bound is optional."""

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    choices: tuple[Any, ...] = ()

    def allow(self, value: Any) -> bool:
        """Return whether a value, or each element of a tuple, is within the limits."""
        if isinstance(value, tuple):
            return len(value) > 0 and all(map(self.allow, value))
        return (
            (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
            and (self.at_most is None or value <= self.at_most)
            and (not self.choices or value in self.choices)
        )

    def __str__(self) -> str:
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        bounds = {"above": self.above, "at least": self.at_least, "below": self.below, "at most": self.at_most}
        return " and ".join(f"{word} {bound}" for word, bound in bounds.items() if bound is not None)


def setting(default: Any, about: str, **limits: Any) -> Any:
    """Declare a setting, as a dataclass field.

    Parameters
    ----------
    default : object
        The default value; None usually means that the value is chosen automatically.
    about : str
        One line that says what the setting is and where its default comes from.
    **limits
        `above`, `at_least`, `below`, `at_most` for numbers; `choices` for values or elements of a tuple.

    Examples
    --------
    >>> setting(0.1, "tau of Eq. 4; ours", above=0).metadata["allowed"]
    'above 0'
    """
    found = Limits(**limits)
    return dataclasses.field(default=default, metadata={"about": about, "limits": found, "allowed": str(found)})


class Settings:
    """scikit-learn's interface to settings; importing its base class would take a second at every start."""

    def check_settings(self) -> None:
        """Check the types and limits of all settings; subclasses add relations between settings.

        Raises
        ------
        ValueError
            If a value is not allowed whatever the data are; it names the setting and the values that are.
        """
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value, hint = getattr(self, field.name), hints[field.name]
            kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
            limits = field.metadata.get("limits", Limits())
            is_tuple = any(get_origin(kind) is tuple for kind in kinds)
            allowed = f"a tuple of one or more of {', '.join(map(str, limits.choices))}" if is_tuple else str(limits)
            wanted = [TYPE_TEXTS.get(kind, allowed if is_tuple else _text(kind)) for kind in kinds]
            is_right = any(_is_of(value, kind) for kind in kinds)
            require(is_right, f"{field.name}={value!r} must be {' or '.join(wanted)}")
            or_none = ", or None" if NoneType in kinds else ""
            require(value is None or limits.allow(value), f"{field.name}={value!r} must be {allowed}{or_none}")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all settings by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    def set_params(self, **settings: Any) -> Self:
        """Change some settings; the next fit uses them."""
        unknown, known = settings.keys() - self.get_params().keys(), ", ".join(self.get_params())
        require(not unknown, f"{type(self).__name__} has no {', '.join(sorted(unknown))}; its settings are {known}")
        for name, value in settings.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {field.name: field.default for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        changed = [f"{name}={value!r}" for name, value in self.get_params().items() if value != defaults[name]]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.base import BaseEstimator  # noqa: PLC0415

        return BaseEstimator().__sklearn_tags__()


def _text(kind: Any) -> str:
    return f"one of {', '.join(map(str, get_args(kind)))}" if get_origin(kind) is Literal else str(kind)


def _is_of(value: Any, kind: Any) -> bool:
    """Return whether a value is of the type of a setting; numbers must be finite and may be numpy's."""
    is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is_of(part, get_args(kind)[0]) for part in value)
    if kind is float:
        return is_number
    return is_number and isinstance(value, Integral) if kind is int else isinstance(value, kind)

"""Settings of the methods: dataclass fields that say what they are, and their checks."""

import dataclasses
import math
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Self, get_args

from combemb.system.errors import require


def setting(default: Any, about: str) -> Any:
    """A hyper-parameter: a dataclass field with one line of what it is and where its default comes from."""
    return dataclasses.field(default=default, metadata={"about": about})


class Settings:
    """What scikit-learn asks of the fields of a dataclass. Its own base class would cost every start a second."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All settings by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    def set_params(self, **settings: Any) -> Self:
        """Change some settings; a fit takes notice of it."""
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

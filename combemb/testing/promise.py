"""Promises: what every method must do, each checked by one function that raises an error if a method does not."""

import dataclasses
import inspect
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import combemb
from combemb.learning.codes import CodeMethod
from combemb.learning.method import Method
from combemb.system.arrays import to_numpy
from combemb.system.errors import Note
from combemb.testing.trial import Trial

Check = Callable[[Trial], None]
KINDS: dict[Check, type[Any]] = {}  # the base class of the methods that a check is for, if not all of them


class BrokenPromise(AssertionError):
    """A method breaks a promise; the message says which one, and how."""


@dataclass(frozen=True)
class Promise:
    """What a method must do: a short name, the text, a check that raises an error, and the class that promises it."""

    name: str
    text: str
    check: Check
    only_for: type[Any] = Method

    def verify(self, trial: Trial) -> None:
        """Raise `BrokenPromise` from any error that the check raises."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Note)  # trials are small
                self.check(trial)
        except Exception as error:
            kind = "" if isinstance(error, BrokenExpectation) else f"{type(error).__name__}: "
            how = f"{kind}{error}{_place(error) if kind else ''}"
            broken = f'{trial.cls.__name__} breaks a promise: "{self.text}" ({self.name}): {how}'
            raise BrokenPromise(broken) from error


class BrokenExpectation(AssertionError):
    """A check found something else than it expected."""


def _place(error: Exception) -> str:
    """Return the last line of an error's traceback that is not in a library of ours, if there is one."""
    own = str(Path(combemb.__file__).parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    theirs = [frame for frame in frames if not frame.filename.startswith(own) or "methods" in frame.filename]
    return f" ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else ""


def only_for(kind: type[Any]) -> Callable[[Check], Check]:
    """Mark a check as a promise of one kind of methods."""

    def mark(check: Check) -> Check:
        KINDS[check] = kind
        return check

    return mark


def promises_in(topic: ModuleType) -> Iterator[Promise]:
    """Yield the promises of a module: each public function checks one, the first line of its docstring is the text."""
    for name, check in vars(topic).items():
        if inspect.isfunction(check) and check.__module__ == topic.__name__ and not name.startswith("_"):
            text = (check.__doc__ or "").splitlines()[0].rstrip(".")
            yield Promise(name, text[0].lower() + text[1:], check, KINDS.get(check, Method))


def expect(condition: Any, message: str) -> None:
    """Raise an AssertionError with this message unless the condition holds, also under `python -O`."""
    if not condition:
        raise BrokenExpectation(message)


def expect_same(a: Any, b: Any, what: str) -> None:
    """Expect two tensors, arrays, lists or numbers to be equal; the message counts the rows that differ."""
    first, second = np.atleast_1d(to_numpy(a)), np.atleast_1d(to_numpy(b))
    expect(first.shape == second.shape, f"{what} differ in shape: {first.shape} and {second.shape}")
    differs = np.reshape(first != second, (len(first), -1)).any(axis=1)
    expect(not differs.any(), f"{what} differ in {differs.sum()} of {len(first)} rows")


def expect_same_discovery(a: Any, b: Any, what: str = "discoveries") -> None:
    """Expect two discoveries, or parts of them, to be equal in every part."""
    for field in dataclasses.fields(a):
        one, other = getattr(a, field.name), getattr(b, field.name)
        same = expect_same_discovery if dataclasses.is_dataclass(one) else expect_same
        same(one, other, f"{what}: {field.name}")


def expect_same_fits(a: Method, b: Method, x: Any, what: str) -> None:
    """Expect two fitted methods to give these items the same embeddings and, if they have codes, the same codes."""
    expect_same(a.embed(x), b.embed(x), f"embeddings of {what}")
    if isinstance(a, CodeMethod) and isinstance(b, CodeMethod):
        codes = a.encode(x)
        expect_same(codes, b.encode(x), f"codes of {what}")
        expect_same(a.codebook.decode(codes), b.codebook.decode(codes), f"decoded codes of {what}")


@contextmanager
def refused(what: str, *words: str) -> Iterator[None]:
    """Expect a ValueError whose message contains all these words; `what` names what must be refused."""
    says = " and ".join(map(repr, words)) or "why"
    try:
        yield
    except ValueError as error:
        missing = [word for word in words if word not in str(error)]
        expect(not missing, f"{what} is refused, but the error does not say {missing}: {error}")
    except Exception as error:
        raise BrokenExpectation(f"{what} raises {type(error).__name__}, not a ValueError that says {says}") from error
    else:
        raise BrokenExpectation(f"{what} is accepted; a ValueError that says {says} should be raised")


def expect_refused_fit(trial: Trial, method: Method, x: Any, labels: Any, what: str, *words: str) -> None:
    """Expect that `fit` refuses the data before anything is written, and leaves the method unfitted."""
    folder = trial.new_path()
    with refused(f"a fit with {what}", *words):
        method.fit(x, labels, folder=folder)
    expect(not folder.exists(), f"a fit with {what} is refused after {', '.join(written(folder))} were written")
    with refused(f"embed after a refused fit with {what}", "not fitted"):
        method.embed(trial.plain.x)


def written(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder by their paths."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

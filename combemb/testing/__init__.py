"""The contract of all methods, for our own and for those of other packages.

`check_method(MyMethod)` raises `BrokenPromise` unless the class does what every method must do. From the command line:
`python -m combemb.testing package.module:Class`.
"""

from collections.abc import Iterable

from combemb.learning.method import Method
from combemb.testing import discovering, given, images, kinds, outcome, run_folders, the_class  # noqa: F401  # register
from combemb.testing.promise import PROMISES, BrokenPromise, Promise
from combemb.testing.trial import Trial

__all__ = ["BrokenPromise", "Promise", "Trial", "check_method", "promises"]


def promises(cls: type[Method] | None = None) -> list[Promise]:
    """Return the promises that a class of methods makes, or all that there are.

    Examples
    --------
    >>> next(promise.text for promise in promises() if promise.name == "seed_decides")
    'the seed decides the outcome'
    """
    return [promise for promise in PROMISES if cls is None or promise.applies_to(cls)]


def check_method(cls: type[Method], only: Iterable[str] | None = None) -> None:
    """Check that a class of methods keeps every promise; this takes some seconds.

    Parameters
    ----------
    cls : type
        A subclass of `combemb.methods.Method`.
    only : iterable of str, optional
        Names of promises; the others are not checked.

    Raises
    ------
    BrokenPromise
        At the first promise that is broken; the message says which one, and how.

    Examples
    --------
    >>> from combemb.methods.itq import ITQ
    >>> check_method(ITQ, only=["constructor_stores", "seed_decides"])
    """
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise TypeError(f"{cls!r} is no class of methods; give a subclass of combemb.methods.Method")
    chosen, known = None if only is None else set(only), {promise.name for promise in PROMISES}
    if chosen is not None and not chosen <= known:
        raise ValueError(
            f"there is no promise {', '.join(sorted(chosen - known))}; there are {', '.join(sorted(known))}"
        )
    with Trial(cls) as trial:
        for promise in promises(cls):
            if chosen is None or promise.name in chosen:
                promise.verify(trial)

"""Errors that say what was found, what is needed and what to do; and warnings for the reader of a result."""


def require(condition: bool, message: str) -> None:
    """Raise a ValueError with this message unless the condition holds."""
    if not condition:
        raise ValueError(message)


class Note(UserWarning):
    """What a user should know of a result that may not be what was meant."""


class UnknownData(ValueError):
    """The data that a run was fitted on are not known, or gone."""

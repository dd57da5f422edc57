"""What a table is: rows of methods, columns of scores, the published numbers, and the orders that they claim."""

from dataclasses import dataclass, field
from typing import Any, Literal

Task = Literal["retrieval", "discovery", "both", "regions"]
Fields = tuple[tuple[str, Any], ...]  # settings of a method, sorted by name

N_CLASSES, N_NOVEL = "<number of classes>", "<number of novel classes>"  # settings that the data decide
FEATURES = "features"  # stands for a method: the float features of the backbone, without any training


def fields(**settings: Any) -> Fields:
    """Return settings as a value that can be hashed."""
    return tuple(sorted(settings.items()))


@dataclass(frozen=True)
class Column:
    """A score of a table.

    Attributes
    ----------
    title : str
    score : str
        Its name in the results.
    bits : int, optional
        Length of the codes; None takes what the table has.
    group : str
        Title above neighbouring columns, if there is one.
    """

    title: str
    score: str
    bits: int | None = None
    group: str = ""


@dataclass(frozen=True)
class Row:
    """A method with its fields, and the published number of each column; None where there is none."""

    title: str
    method: str
    fields: Fields = ()
    published: tuple[float | None, ...] = ()
    is_ours: bool = False
    group: str = ""
    constructor: str = ""  # a class method that makes the method, if not its class itself
    labelled_share: float | None = None  # None: that of the table


@dataclass(frozen=True)
class Order:
    """A published order: in every column, each row is below the next one."""

    text: str
    rows: tuple[str, ...]  # titles, the lowest first
    last_column_only: bool = False


@dataclass(frozen=True)
class Table:
    """A table as data: which fits it needs, what is shown of them, and what was published.

    Attributes
    ----------
    name, title, source : str
        Name for the command line, title, and where the published numbers stand.
    dataset, task : str
    columns, rows : tuple
    extras : tuple of Column
        More scores of the same fits, without published numbers.
    orders : tuple of Order
    more_bits_help : bool
        Whether the paper claims that longer codes of ours are not worse.
    splits, seeds : tuple
        Class splits and seeds whose mean is shown.
    seen_share, labelled_share : float
    baselines : tuple of Row
        Rows that are not in the publication.
    note : str
    """

    name: str
    title: str
    source: str
    dataset: str
    task: Task
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    extras: tuple[Column, ...] = ()
    orders: tuple[Order, ...] = ()
    more_bits_help: bool = False
    splits: tuple[str, ...] = ("0", "1", "2", "3")
    seeds: tuple[int, ...] = (0,)
    seen_share: float = 0.75
    labelled_share: float = 0.5
    baselines: tuple[Row, ...] = field(default=())
    note: str = ""

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """The rows, with the baselines after them."""
        return self.rows + self.baselines

    @property
    def bits(self) -> tuple[int | None, ...]:
        """The lengths of codes that the columns need."""
        return tuple(dict.fromkeys(column.bits for column in self.columns))

"""How items are divided into blocks: a plan is made once and stored, so that a run continues with the same blocks."""

from bisect import bisect_right
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

from combemb.scale.store import Store
from combemb.system.errors import require

Kind = Literal["images", "embeddings"]

FORMAT = 1
PLAN = "plan.json"
BLOCK_ITEMS = {"images": 2_048, "embeddings": 32_768}  # some seconds of work: a lost worker costs no more


@dataclass(frozen=True)
class Table:
    """A Parquet file or an array with an item per row, by its URL or by its name in the store of the results."""

    url: str
    n_rows: int
    n_bytes: int
    is_own: bool = False


@dataclass(frozen=True)
class Block:
    """Rows of a table. `first` is the number of the first of them among all items."""

    number: int
    table: Table
    start: int
    n_rows: int
    first: int


@dataclass(frozen=True)
class Plan:
    """The blocks that items are divided into. A block never has rows of two tables.

    Attributes
    ----------
    source : str
        What the user gave.
    kind : {"images", "embeddings"}
        What the tables hold: paths of images, or embeddings.
    model : str
        Digest of the weights of the model that works on the items.
    block_items : int
        Maximum number of items in a block.
    tables : tuple of Table
        In the order in which their items are numbered.
    training_part : bool
        Whether a test split was left out.
    """

    source: str
    kind: Kind
    model: str
    block_items: int
    tables: tuple[Table, ...]
    training_part: bool = False

    @property
    def n_items(self) -> int:
        """Number of items, including images that cannot be read."""
        return sum(table.n_rows for table in self.tables)

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return self._ends[-1][0]

    @cached_property
    def _ends(self) -> list[tuple[int, int]]:
        """The number of blocks and of items up to the end of each table."""
        blocks = accumulate(-(-table.n_rows // self.block_items) for table in self.tables)
        return list(zip(blocks, accumulate(table.n_rows for table in self.tables), strict=True))

    def block(self, number: int) -> Block:
        """Return a block by its number."""
        place = bisect_right(self._ends, number, key=lambda end: end[0])
        n_blocks, n_items = self._ends[place - 1] if place else (0, 0)
        table, start = self.tables[place], (number - n_blocks) * self.block_items
        return Block(number, table, start, min(self.block_items, table.n_rows - start), n_items + start)

    def store(self, store: Store) -> None:
        """Write the plan into a store."""
        store.write_json(PLAN, {"format": FORMAT, **asdict(self)})


def stored_plan(store: Store) -> Plan | None:
    """Return the plan in a store, None if there is none; raise a ValueError if it is damaged or of another version."""
    found = store.read_json(PLAN)
    if found is None:
        return None
    version = found.pop("format")
    if version != FORMAT:
        raise ValueError(f"{store.url} has a plan of format {version}, this combemb reads {FORMAT}; use overwrite")
    return Plan(**{**found, "tables": tuple(Table(**table) for table in found["tables"])})


def require_same(store: Store, before: Plan, wanted: dict[str, Any]) -> None:
    """Raise a ValueError if a store has results of something else than what is wanted now."""
    changed = [f"{name} was {getattr(before, name)}, now it is {value}" for name, value in wanted.items()]
    changed = [text for text, name in zip(changed, wanted, strict=True) if getattr(before, name) != wanted[name]]
    require(not changed, f"cannot continue {store.url}: {'; '.join(changed)}; undo this, or use overwrite")

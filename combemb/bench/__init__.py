"""The tables and figures of the paper as data, a runner that fills them, a report, and a comparison on own data."""

from combemb.bench.discovery_tables import DISCOVERY_TABLES, REGIONS
from combemb.bench.retrieval_tables import RETRIEVAL_TABLES
from combemb.bench.tables import Table
from combemb.system.errors import require

__all__ = ["TABLES", "Table", "chosen"]

TABLES: dict[str, Table] = {table.name: table for table in (*RETRIEVAL_TABLES, *DISCOVERY_TABLES, REGIONS)}


def chosen(names: list[str]) -> list[Table]:
    """Return tables by name, by the start of a name such as "discovery", by data set such as "cifar10", or "all".

    Examples
    --------
    >>> [table.name for table in chosen(["half-seen"])]
    ['half-seen-cifar10', 'half-seen-cifar100']
    """
    found: dict[str, Table] = {}
    for name in names:
        here = {
            key: table
            for key, table in TABLES.items()
            if name in ("all", table.dataset) or f"{key}-".startswith(f"{name}-")
        }
        require(bool(here), f"there is no table {name!r}; choose all, a data set, or of {', '.join(TABLES)}")
        found |= here
    return list(found.values())

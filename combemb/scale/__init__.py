"""More than one machine: encoding, indexing, search and discovery in blocks and shards, in this process or on Ray.

Drivers that call the public functions of other rooms. Ray is imported when it is asked for, never before.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from combemb.scale.collection import ShardedCollection
    from combemb.scale.discovering import discover_sharded
    from combemb.scale.encoding import encode_sharded
    from combemb.scale.indexing import index_sharded
    from combemb.scale.sharded_index import MissingShards, ShardedHits, ShardedIndex

_HOMES = {
    "MissingShards": "sharded_index",
    "ShardedCollection": "collection",
    "ShardedHits": "sharded_index",
    "ShardedIndex": "sharded_index",
    "discover_sharded": "discovering",
    "encode_sharded": "encoding",
    "index_sharded": "indexing",
}
__all__ = ["MissingShards", "ShardedCollection", "ShardedHits", "ShardedIndex"]
__all__ += ["discover_sharded", "encode_sharded", "index_sharded"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

"""What requests of the API hold; docs/decisions/explorer.md says what it means."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Row = Annotated[int, Field(ge=0, lt=2**31, description="Number of an item in the discovery.")]
Rows = Annotated[list[Row], Field(max_length=1_000_000)]
Text = Annotated[str, Field(min_length=1, max_length=1_000)]
Number = Annotated[float, Field(ge=-1e30, le=1e30)]  # so that sums of squares are numbers of 64 bits
Vector = Annotated[list[Number], Field(min_length=1, max_length=100_000)]
Order = Literal["exemplars", "borderline", "doubt", "row"]
Kind = Literal["seen", "novel"]
SettingValue = str | int | float | bool | None


class Asked(BaseModel):
    """A request: nothing but what is described, of the types that are described."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Change(Asked):
    """A change that is based on a state, or on whatever is there now."""

    state: Text | None = None


class Name(Change):
    """Name a class; the name of another class joins the two."""

    kind: Literal["name"]
    cluster: Text
    to: Text


class Merge(Change):
    """Make one class of several, with the name of the first."""

    kind: Literal["merge"]
    clusters: Annotated[list[Text], Field(min_length=2, max_length=10_000)]


class Split(Change):
    """Make a new class of some items; without items, a class divides by itself."""

    kind: Literal["split"]
    cluster: Text
    items: Rows | None = None
    into: Annotated[int, Field(ge=2, le=100)] = 2


class Move(Change):
    """Move items into a class."""

    kind: Literal["move"]
    to: Text
    items: Rows


class Reject(Change):
    """Take all or some items out of a class; they belong to none then."""

    kind: Literal["reject"]
    cluster: Text
    items: Rows | None = None


class Undo(Change):
    """Take back the last change."""

    kind: Literal["undo"]


AnyChange = Annotated[Name | Merge | Split | Move | Reject | Undo, Field(discriminator="kind")]


class Chosen(Asked):
    """The run to show."""

    name: Text


class Search(Asked):
    """A search by an item, or by features for runs that were fitted on embeddings."""

    row: Row | None = None
    x: Vector | None = None
    k: Annotated[int, Field(ge=1, le=1_000)] = 20
    kind: Kind | None = None
    cluster: Text | None = None


class Features(Asked):
    """Features of items."""

    x: Annotated[list[Vector], Field(min_length=1, max_length=10_000)]


class Embed(Asked):
    """Items to embed: rows, or features."""

    rows: Annotated[list[Row], Field(min_length=1, max_length=10_000)] | None = None
    x: Annotated[list[Vector], Field(min_length=1, max_length=10_000)] | None = None


class Folders(Asked):
    """How to sort images into folders: links to them, or copies."""

    copy_: bool = Field(False, alias="copy")


class Fit(Asked):
    """Fit again with the labels that follow from the names."""

    kind: Literal["fit"]
    settings: dict[str, SettingValue] = Field(default_factory=dict, max_length=100)


class Discover(Asked):
    """Discover again."""

    kind: Literal["discover"]
    n_novel: Annotated[int, Field(ge=0, le=100_000)] | None = None


class Index(Asked):
    """Index the data of the fit."""

    kind: Literal["index"]


class Map(Asked):
    """Draw the map."""

    kind: Literal["map"]


AnyJob = Annotated[Fit | Discover | Index | Map, Field(discriminator="kind")]

"""What answers of the API hold; docs/decisions/explorer.md says what it means."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Availability = Literal["ready", "missing", "impossible"]
PredictedKind = Literal["known", "found", "neither"]


class Suggested(BaseModel):
    """A name to suggest."""

    name: str
    reason: str


class Cluster(BaseModel):
    """A class."""

    number: int
    name: str
    is_seen: bool
    is_named: bool
    colour: str
    n_items: int
    n_labelled: int
    n_left: int
    confidence: float | None
    suggestions: list[Suggested]
    exemplars: list[int]


class ClusterList(BaseModel):
    """All classes."""

    state: str
    n_items: int
    n_left: int
    n_rejected: int
    can_undo: str | None
    clusters: list[Cluster]


class Group(BaseModel):
    """Items that a change moved together, and their class now."""

    n: int
    to: str | None


class Changed(BaseModel):
    """What a change did."""

    text: str
    groups: list[Group]
    clusters: ClusterList


class Said(BaseModel):
    """A change that stands."""

    kind: str
    text: str


class SaidList(BaseModel):
    """Changes that stand, the last first."""

    state: str
    changes: list[Said]


class Item(BaseModel):
    """An item."""

    row: int
    id: str
    name: str
    cluster: str | None
    number: int
    found: str
    is_labelled: bool
    is_said: bool
    is_novel: bool
    confidence: float
    doubt: float


class ItemPage(BaseModel):
    """Some items of many."""

    state: str
    total: int
    start: int
    items: list[Item]


class Setting(BaseModel):
    """A setting of the method."""

    name: str
    value: Any
    default: Any
    about: str


class Metric(BaseModel):
    """A number to judge a run by."""

    name: str
    value: float
    text: str
    about: str


class Verdict(BaseModel):
    """Whether a fit is good for new classes."""

    grade: str
    text: str


class MetaClasses(BaseModel):
    """table[set][class]: the meta-class of a class in a set."""

    n_words: int
    classes: list[str]
    table: list[list[int]]


class Run(BaseModel):
    """A run folder."""

    name: str
    state: str | None
    method: str
    paper: str
    combemb: str
    data: str | None
    n_items: int | None
    n_labelled: int | None
    has_pictures: bool
    n_seen: int
    n_novel: int | None
    n_novel_interval: tuple[int, int] | None
    bits: int | None
    codebook: str | None
    discovery: Availability
    index: Availability
    map: Availability
    classes: list[str]
    settings: list[Setting]
    verdict: Verdict | None
    metrics: list[Metric]
    meta_classes: MetaClasses | None
    notes: list[str]
    limits: dict[str, int]


class Line(BaseModel):
    """A curve."""

    name: str
    values: list[float | None]


class Panel(BaseModel):
    """Curves that belong into one plot."""

    title: str
    is_share: bool
    is_log: bool
    lines: list[Line]


class Curves(BaseModel):
    """The numbers of all epochs."""

    epochs: list[int]
    panels: list[Panel]
    code_use: list[list[float]] | None


class RunBeside(BaseModel):
    """A run on the same data."""

    name: str
    is_current: bool
    is_complete: bool
    n_labelled: int | None
    n_classes: int
    n_novel: int | None
    started: str


class RunList(BaseModel):
    """All runs on the same data."""

    runs: list[RunBeside]


class Count(BaseModel):
    """A number before and after."""

    name: str
    before: int
    after: int


class Moved(BaseModel):
    """Items that changed their class."""

    model_config = ConfigDict(populate_by_name=True)

    source: str | None = Field(alias="from")
    to: str | None
    n: int


class Compared(BaseModel):
    """What changed from one run to another."""

    before: str
    after: str
    counts: list[Count]
    classes_added: list[str]
    classes_removed: list[str]
    n_common: int
    n_moved: int
    moves: list[Moved]


class Query(BaseModel):
    """What was searched for, and the class that it is in or is predicted to be in."""

    row: int | None
    cluster: str | None
    confidence: float | None
    kind: PredictedKind | None = None


class Hit(BaseModel):
    """An entry of the index that was found."""

    score: float
    row: int | None
    entry: int
    id: str
    name: str
    label: str | None
    cluster: str | None
    is_novel: bool
    thumbnail: str | None
    picture: str | None


class Found(BaseModel):
    """What a search found, the nearest first."""

    query: Query
    hits: list[Hit]


class Embedded(BaseModel):
    """Embeddings, and codes if the method has any."""

    z: list[list[float]]
    codes: list[list[int]] | None


class Predicted(BaseModel):
    """The class of a new item."""

    name: str
    kind: PredictedKind
    confidence: float | None


class PredictedList(BaseModel):
    """The classes of new items."""

    items: list[Predicted]


class Sorted(BaseModel):
    """Where images were sorted into folders, and how many."""

    folder: str
    n: int


class Step(BaseModel):
    """A part of a job."""

    number: int
    of: int
    name: str


class Result(BaseModel):
    """What a fit made, and what changed."""

    run: str
    compared: Compared | None


class Job(BaseModel):
    """A child process of the server."""

    id: str
    kind: str
    status: Literal["running", "done", "failed", "stopped"]
    title: str
    progress: float | None
    step: Step | None
    text: str
    lines: list[str]
    started: str
    seconds: float
    error: str | None
    result: Result | None


class JobList(BaseModel):
    """All jobs since the server was started, the last first."""

    jobs: list[Job]

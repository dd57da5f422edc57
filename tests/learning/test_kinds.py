"""The interface supports methods of every kind: each keeps all promises and does what it is for."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from combemb import methods
from combemb.collection import Collection
from combemb.learning.codes import CodeMethod
from combemb.search import CodeIndex
from combemb.system.files import write_tensors
from combemb.testing import check_method
from tests.blobs import blobs
from tests.commands import done
from tests.learning.kinds import KINDS, Head, Local, LocalCodebook, Queue, Supervised, TwoPlayers
from tests.pictures import LABELS, PIXELS
from tests.toy_methods import assert_same_state, without_speed

BLOBS = blobs(4, 2, n_each=20, D=16)
SHORT = {"epochs": 4, "batch_size": 32, "device": "cpu"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_keeps_every_promise(kind):
    check_method(kind)


@pytest.mark.parametrize("kind", [TwoPlayers, Queue])
def test_players_and_queues_resume_exactly(kind, tmp_path, every_epoch, monkeypatch):
    whole = kind(**SHORT).fit(BLOBS.x, BLOBS.labels)
    on_epoch = kind.on_epoch

    def stop(self, data, epoch):
        if epoch == 2:
            raise KeyboardInterrupt
        on_epoch(self, data, epoch)

    monkeypatch.setattr(kind, "on_epoch", stop)
    with pytest.raises(KeyboardInterrupt):
        kind(**SHORT).fit(BLOBS.x, BLOBS.labels, folder=tmp_path / "run")
    monkeypatch.undo()
    resumed = kind(**SHORT).fit(BLOBS.x, BLOBS.labels, folder=tmp_path / "run", resume=True)
    assert_same_state(resumed.state(), whole.state())
    assert without_speed(resumed.log_) == without_speed(whole.log_)


@dataclass(kw_only=True, eq=False, repr=False)
class Refreshed(Queue):
    """Targets of all items that every epoch moves: as many as items, and of no use after training."""

    def prepare(self, data):
        self.kept["targets"] = torch.zeros(len(data.items))

    def on_epoch(self, data, epoch):
        self.kept["targets"] += 1 + self.network_(self.clean_features(data.items, torch.arange(len(data.items)))).mean(
            1
        )

    def losses(self, batch):
        pull = (self.network_(batch.x).mean(dim=1) * self.kept["targets"][batch.rows].detach()).mean()
        return super().losses(batch) | {"pull": pull}


def test_state_of_all_items_is_kept_in_checkpoints_only(tmp_path):
    check_method(Refreshed, only=["resumed", "folder_gives_back"])
    model = Refreshed(**SHORT).fit(BLOBS.x, BLOBS.labels, folder=tmp_path / "run")
    assert not hasattr(model, "scratch_")
    assert not [name for name in model.state() if "targets" in name]


@dataclass(kw_only=True, eq=False, repr=False)
class Unmapped(Queue):
    """Sees features at unit length."""

    uses_feature_map = False


def test_features_need_not_be_mapped():
    model = Unmapped(**SHORT).fit(BLOBS.x, BLOBS.labels)
    assert model.network_.project.in_features == 16
    x = torch.from_numpy(BLOBS.x)
    torch.testing.assert_close(model.tower_.features(x), x / x.norm(dim=1, keepdim=True))
    check_method(Unmapped, only=["folder_gives_back"])


def test_a_parameter_that_nobody_trains_is_refused(monkeypatch):
    monkeypatch.setattr(
        TwoPlayers, "optimisers", lambda self: [torch.optim.SGD(self.network_.judge.parameters(), lr=1)]
    )
    with pytest.raises(ValueError, match=r"2 parameters are in no optimiser or in several, such as network\.project"):
        TwoPlayers(**SHORT).fit(BLOBS.x, BLOBS.labels)


def test_clean_features_leave_batch_norms_alone():
    settings = {"backbone": "resnet18", "backbone_width": 4, "image_size": 16, "finetune": "all", "batch_size": 36}
    seen = []

    class Looking(Queue):
        def on_epoch(self, data, epoch):
            few = self.clean_features(data.items, torch.arange(5))
            seen.append((self.tower_.training, few, self.clean_features(data.items, torch.arange(20))[:5]))

    Looking(**settings, epochs=1).fit(PIXELS, LABELS)
    ((is_training, alone, among_others),) = seen
    assert is_training
    torch.testing.assert_close(alone, among_others)


def test_inputs_of_a_trained_stage_are_no_features_for_discovery():
    settings = {"backbone": "resnet18", "backbone_width": 4, "image_size": 16, "epochs": 1, "batch_size": 36}
    model = Queue(**settings, finetune="all").fit(PIXELS, LABELS)
    assert model.read(PIXELS).discovery_features is None
    weights = {f"stages.{name}": t for name, t in model.tower_.backbone.stages.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        write_tensors(Path(folder) / "w.safetensors", weights)
        frozen, last = (
            Queue(**settings, finetune=finetune, backbone_weights=f"{folder}/w.safetensors").fit(PIXELS, LABELS)
            for finetune in ("none", "last")
        )
        assert frozen.read(PIXELS).discovery_features.shape == (72, 32)
        assert last.read(PIXELS).discovery_features is None


def test_a_queue_is_a_buffer_that_fills():
    model = Queue(**SHORT).fit(BLOBS.x, BLOBS.labels)
    queue = model.state()["network.queue"]
    assert queue.shape == (32, 16)
    torch.testing.assert_close(queue.norm(dim=1), torch.ones(32))


def test_two_players_have_a_state_each():
    model = TwoPlayers(**SHORT, bits=12).fit(BLOBS.x, BLOBS.labels)
    assert len(model.optimisers()) == 2
    assert {"judge", "fooled", "flat"} <= model.log_[-1].keys()


def test_a_local_codebook_is_indexed_and_searched(tmp_path):
    np.savez(tmp_path / "items.npz", x=BLOBS.x, labels=BLOBS.labels)
    done("fit", tmp_path / "items.npz", "--out", tmp_path / "run", "--method", "tests.learning.kinds:Local")
    done("index", tmp_path / "run")
    np.save(tmp_path / "query.npy", BLOBS.x[:3])
    found = json.loads(done("search", tmp_path / "run", tmp_path / "query.npy", "-k", 5, "--json").stdout)
    model = methods.load(tmp_path / "run")
    assert isinstance(model.codebook, LocalCodebook)
    scores = model.codebook.scores(model.embed(BLOBS.x[:3]), model.encode(BLOBS.x))
    for row, result in zip(scores, found, strict=True):
        assert [hit["score"] for hit in result["hits"]] == sorted(row.tolist(), reverse=True)[:5]
    assert len(Collection.open(tmp_path / "run")) == len(BLOBS.x)
    done("discover", tmp_path / "run", "--no-page", "--count-by", "codes")


def test_codes_of_a_local_codebook_need_not_come_back():
    model = Local(bits=12).fit(BLOBS.x, BLOBS.labels)
    codes = model.encode(BLOBS.x)
    assert codes.shape == (len(BLOBS.x), 6)
    assert model.codebook.decode(codes).shape == model.embed(BLOBS.x).shape
    index = CodeIndex(model.codebook)
    index.add(codes)
    assert index.search(model.embed(BLOBS.x[:1]), k=1).ids.shape == (1, 1)


@pytest.mark.parametrize("n_novel", [None, 0, 3])
def test_the_head_is_sized_before_the_network_is_built(n_novel, tmp_path):
    model = Head(**SHORT, n_novel=n_novel).fit(BLOBS.x, BLOBS.labels, folder=tmp_path / "run")
    expected = 2 if n_novel is None else n_novel
    assert model.n_novel_ == json.loads((tmp_path / "run/run.json").read_text())["n_novel"] == expected
    assert model.network_.classify.out_features == 4 + expected
    assert set(model.predict(BLOBS.x)) <= {0, 1, 2, 3, *(f"novel-{i}" for i in range(1, expected + 1))}
    how = "estimated" if n_novel is None else "given"
    assert model.summary() == [f"head over 4 seen and {expected} novel classes ({how})"]


def test_a_resumed_head_keeps_its_number(tmp_path, every_epoch, monkeypatch):
    def stop(self, data, epoch):
        if epoch == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Head, "on_epoch", stop)
    with pytest.raises(KeyboardInterrupt):
        Head(**SHORT).fit(BLOBS.x, BLOBS.labels, folder=tmp_path / "run")
    monkeypatch.undo()
    monkeypatch.setattr("combemb.learning.head.discover", None)  # would be called
    assert Head(**SHORT).fit(BLOBS.x, BLOBS.labels, folder=tmp_path / "run", resume=True).n_novel_ == 2


def test_predict_says_by_which_way_it_answers():
    model = Head(**SHORT).set_params(epochs=40).fit(BLOBS.x, BLOBS.labels)
    assert model.predicts_by == "head"
    is_seen = BLOBS.targets < 4
    assert np.mean(model.predict(BLOBS.x)[is_seen] == BLOBS.targets[is_seen]) > 0.9
    with pytest.raises(ValueError, match="nothing was discovered yet"):
        model.predict(BLOBS.x, by="clusters")
    model.discover(BLOBS.x, BLOBS.labels)
    assert "novel-2" in model.predict(BLOBS.x, by="clusters")
    with pytest.raises(ValueError, match="choose 'head' or 'clusters'"):
        model.predict(BLOBS.x, by="guess")
    other = Queue(**SHORT).fit(BLOBS.x, BLOBS.labels)
    assert other.predicts_by == "clusters"
    with pytest.raises(ValueError, match="Queue has no head of its own; use 'clusters'"):
        other.predict(BLOBS.x, by="head")


def test_heads_take_one_label_per_item():
    several = np.where(BLOBS.labels[:, None] >= 0, np.eye(4)[BLOBS.labels], -1)
    with pytest.raises(ValueError, match="Head takes one label per item"):
        Head(**SHORT).fit(BLOBS.x, several)


@pytest.mark.parametrize("several", [False, True])
def test_a_supervised_method_uses_the_labelled_items_of_a_pile(several):
    labels = np.where(BLOBS.labels[:, None] >= 0, np.eye(4)[BLOBS.labels], -1) if several else BLOBS.labels
    rows = BLOBS.labels >= 0
    of_pile = Supervised(**SHORT, bits=12).fit(BLOBS.x, labels)
    alone = Supervised(**SHORT, bits=12).fit(BLOBS.x[rows], labels[rows])
    assert torch.equal(of_pile.embed(BLOBS.x), alone.embed(BLOBS.x))
    with pytest.raises(ValueError, match="none of the 120 items is labelled"):
        Supervised(**SHORT).fit(BLOBS.x)
    with pytest.raises(ValueError, match="only one class has labels"):
        Supervised(**SHORT).fit(BLOBS.x, np.where(BLOBS.labels == 0, 0, -1))


def test_a_method_without_codes_says_so(tmp_path):
    np.savez(tmp_path / "items.npz", x=BLOBS.x, labels=BLOBS.labels)
    model = Queue(**SHORT).fit(tmp_path / "items.npz", folder=tmp_path / "run")
    assert not isinstance(model, CodeMethod)
    with pytest.raises(ValueError, match="Queue has no codes; fit a method that has, such as combemb"):
        Collection.build(tmp_path / "run")

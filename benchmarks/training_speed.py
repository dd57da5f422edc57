"""Time of a fit against a plain transcription of Eq. 3 to 8: same data, same batches, same threads.

    python benchmarks/training_speed.py

6,000 items x 3 views x 256 features, 24 bits, 80 epochs, batch 512, one thread. The transcription below follows the
formulas: einsum over the sets, both views through the map, no diagnostics, no log. Mapping features and drawing
meta-classes is not part of its time; our time is that of the whole `fit`. Runs alternate, so
that a busy machine slows both, and the ratio of each round is printed.
"""

import math
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, record_function

from combemb import CombEmb
from combemb.data.labels import read_labels
from combemb.learning.batches import Batches, MappedItems
from combemb.learning.loop import schedule

N, V, FEATURES, CLASSES, SEEN = 6_000, 3, 256, 10, 7
EPOCHS, BATCH, BITS, K, SUB = 80, 512, 24, 4, 12
M = BITS // 2
ROUNDS = 3


class Plain(nn.Module):
    """Eq. 3 to 8 as the paper writes them."""

    def __init__(self, n_features: int, table: Tensor):
        super().__init__()
        D = M * SUB
        self.table = table  # (M, C)
        self.project = nn.Linear(n_features, D)
        self.prototypes = nn.Parameter(functional.normalize(torch.randn(M, K, SUB), dim=-1))
        self.h = nn.Sequential(nn.Linear(D, D // 4), nn.BatchNorm1d(D // 4), nn.ReLU(), nn.Linear(D // 4, D))

    def embed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return concatenated sub-vectors (B, D), their cosines to the prototypes (B, M, K), and pi (B, D)."""
        z = functional.normalize(self.project(x).view(len(x), M, SUB), dim=-1)
        theta = functional.normalize(self.prototypes, dim=-1)
        cosines = torch.einsum("bmd,mkd->bmk", z, theta)
        pi = torch.einsum("bmk,mkd->bmd", torch.softmax(10.0 * cosines, dim=-1), theta)  # Eq. 3
        return z.flatten(1), cosines, pi.flatten(1)

    def loss(self, x: Tensor, other: Tensor, labels: Tensor, n_labelled: int) -> Tensor:
        """Return Eq. 8 of a batch, labelled items first."""
        z, cosines, pi = self.embed(x)
        _, _, other_pi = self.embed(other)
        log_p = torch.log_softmax(cosines[:n_labelled] / 0.1, dim=-1)
        meta_labels = self.table.T[labels[:n_labelled]]
        meta = -log_p.gather(2, meta_labels[..., None]).sum(dim=1).mean()  # Eq. 4
        z, unit_pi = functional.normalize(z, dim=1), functional.normalize(pi, dim=1)
        positives = (unit_pi @ unit_pi.T >= 0.7).float()[n_labelled:]  # Eq. 5, anchors: the unlabelled items
        log_q = torch.log_softmax(z[n_labelled:] @ unit_pi.T / 0.2, dim=1)
        similarity = -((positives * log_q).sum(dim=1) / positives.sum(dim=1)).mean()  # Eq. 6
        consistency = -functional.cosine_similarity(self.h(pi), other_pi.detach(), dim=1).mean()  # Eq. 7
        return meta / M + 5.0 * similarity + 4.0 * consistency  # Eq. 8, divided by M


def plain_fit(data: Batches, table: Tensor) -> float:
    torch.manual_seed(0)
    module = Plain(data.items.x.shape[2], table)
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=1e-4)
    began, step, n_steps = time.perf_counter(), 0, EPOCHS * len(data)
    for epoch in range(EPOCHS):
        for batch in data.epoch(epoch):
            optimiser.param_groups[0]["lr"] = 1e-3 * schedule(step, n_steps, 0.05)
            optimiser.zero_grad()
            module.loss(batch.x, batch.other, batch.labels, batch.n_labelled).backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimiser.step()
            step += 1
    return time.perf_counter() - began


def our_fit(x: np.ndarray, labels: np.ndarray, **fields: object) -> tuple[float, CombEmb]:
    began = time.perf_counter()
    model = CombEmb(bits=BITS, epochs=EPOCHS, batch_size=BATCH, **fields).fit(x, labels)
    return time.perf_counter() - began, model


def blobs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    targets = rng.integers(CLASSES, size=N)
    centres = rng.normal(size=(CLASSES, FEATURES))[targets] + 1.5 * rng.normal(size=(N, FEATURES))
    x = (centres[:, None] + 0.5 * rng.normal(size=(N, V, FEATURES))).astype(np.float32)
    return x, np.where((targets < SEEN) & (rng.random(N) < 0.5), targets, -1)


def print_shares(x: np.ndarray, labels: np.ndarray) -> None:
    """Print how the time of a step divides among the parts of our code."""
    model = CombEmb(bits=BITS, epochs=1, batch_size=BATCH).fit(x, labels)
    items = MappedItems(x, model.feature_map_).in_memory()
    data = Batches(items, read_labels(labels, N), BATCH, 0.5, seed=0, with_clean=True)
    model.prepare(data)
    optimiser = model.optimisers()
    model.network_.train()
    with profile(activities=[ProfilerActivity.CPU]) as record:
        for epoch in range(5):
            batches = data.epoch(epoch)
            while True:
                with record_function("1 draw the batch"):
                    batch = next(batches, None)
                if batch is None:
                    break
                with record_function("2 forward: Eq. 3 to 7"):
                    terms = model.losses(batch)
                with record_function("3 backward"):
                    optimiser[0].zero_grad()
                    torch.stack(list(terms.values())).sum().backward()
                with record_function("4 clip and AdamW"):
                    nn.utils.clip_grad_norm_(model.network_.parameters(), 1.0)
                    optimiser[0].step()
    parts = {event.key: event.cpu_time_total for event in record.key_averages() if event.key[0] in "1234"}
    total = sum(parts.values())
    for name, spent in sorted(parts.items()):
        print(f"  {name[2:]:24}{spent / total:6.1%}   {spent / 1000 / 5 / len(data):6.2f} ms per step")


def main() -> None:
    torch.set_num_threads(1)
    x, labels = blobs()
    _, model = our_fit(x, labels)
    items = MappedItems(x, model.feature_map_).in_memory()
    data = Batches(items, read_labels(labels, N), BATCH, 0.5, seed=0)
    model.prepare(data)
    table = model.meta_classes_.table
    same_work = {"pair_rules": ("similar",), "positive_threshold": 0.7, "sub_vector": SUB}
    print(f"{N} x {V} x {FEATURES}, {BITS} bits, {EPOCHS} epochs of {len(data)} steps, batch {BATCH}, one thread")
    ratios = []
    for _ in range(ROUNDS):
        plain = plain_fit(data, table)
        same, _ = our_fit(x, labels, **same_work)
        ours, _ = our_fit(x, labels)
        ratios.append((same / plain, ours / plain))
        print(f"  plain {plain:5.1f} s   ours, Eq. 5 with a given gamma {same:5.1f} s = {same / plain:.2f} x", end="")
        print(f"   ours, default settings {ours:5.1f} s = {ours / plain:.2f} x", flush=True)
    same, ours = (sorted(column)[ROUNDS // 2] for column in zip(*ratios, strict=True))
    print(f"median ratio: {same:.2f} (same work; target: at most 1.0), {ours:.2f} (default settings, which do more:")
    print("  sub-vectors twice as long, the clean view too, neighbours by features and by pi)")
    print("shares of a step, default settings:")
    print_shares(x, labels)


if __name__ == "__main__":
    assert math.log2(K) * M == BITS
    main()

"""SSAH, binary codes that stand hard versions of items, which an adversary makes harder and harder."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam, AdamW, Optimizer

from combemb.data.labels import Labels, same_class
from combemb.learning.batches import Batch, Batches
from combemb.learning.codes import BinaryMethod
from combemb.learning.curves import Panel
from combemb.learning.deep import DeepMethod
from combemb.learning.loop import Terms, descend, parameters_of
from combemb.learning.objectives.image_players import ImageDistorter
from combemb.learning.objectives.ramps import ramp_up
from combemb.learning.objectives.triplets import require_triplets
from combemb.learning.settings import setting
from combemb.system import processes
from combemb.system.machine import seeded

SCALES = (4, 7, 14)  # g: an image has g x g cells, features have g^2 blocks
HIDDEN, CHANNELS = 128, 16  # width of the adversary on features and on pixels, unless it is set


class Distorter(nn.Module):
    """Logits of the blocks of features to occlude at each scale, and a turn for each pair of features.

    Block b of n has the features f with floor(f n / F) = b; there are at most F blocks. The pairs are random.
    """

    pairs: Tensor

    def __init__(self, n_features: int, width: int):
        super().__init__()
        self.blocks = [min(g * g, n_features) for g in SCALES]
        self.trunk = nn.Sequential(nn.Linear(n_features, width), nn.ReLU())
        self.cells = nn.ModuleList(nn.Linear(width, n) for n in self.blocks)
        self.turns = nn.Linear(width, n_features // 2)
        self.register_buffer("pairs", torch.randperm(n_features)[: n_features // 2 * 2].view(2, -1))

    def forward(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the logits of the blocks, (B, blocks) for each scale, and the turns (B, F // 2)."""
        hidden = self.trunk(x)
        return [cells(hidden) for cells in self.cells], self.turns(hidden)

    def distorted(self, x: Tensor, keep: list[Tensor], angles: Tensor, scale: Tensor) -> Tensor:
        """Occlude blocks, then turn pairs of features. scale (B,) is the one that is used for each item."""
        feature = torch.arange(x.shape[1], device=x.device)
        masks = [kept[:, feature * n // x.shape[1]] for n, kept in zip(self.blocks, keep, strict=True)]  # (B, F) each
        occluded = x * torch.stack(masks, dim=1)[torch.arange(len(x), device=x.device), scale]
        (first, second), cos, sin = self.pairs, angles.cos(), angles.sin()
        a, b = occluded[:, first], occluded[:, second]
        turned = occluded.index_copy(1, first, cos * a - sin * b)
        return turned.index_copy(1, second, sin * a + cos * b)


class Players(nn.Module):
    """The hash layer of H-Net, and A-Net."""

    def __init__(self, hashing: nn.Module, adversary: Distorter | ImageDistorter):
        super().__init__()
        self.hashing, self.adversary = hashing, adversary

    def forward(self, x: Tensor) -> Tensor:
        """x (B, F) -> u (B, bits)."""
        u: Tensor = self.hashing(x)
        return u


@dataclass(frozen=True)
class Pace:
    """How hard the hard items may be: loss above that of the originals, share of cells, radians."""

    excess: float
    share: float
    angle: float


@dataclass(kw_only=True, eq=False, repr=False)
class SSAH(DeepMethod, BinaryMethod):
    """Semi-supervised self-pace adversarial hashing (Jin et al. 2020): a reconstruction.

    Known are the players, multi-scale occlusion and multi-angle rotation, the self-paced policy and the consistent
    loss. Formulas other than the pairwise likelihood, and all numbers, are ours: neither code nor settings are public.

    H-Net gives u(x), the code is sign(u). A-Net makes a hard version x^ = rotate(occlude(x)): at a scale that is drawn
    for each item, the share r_t of cells with the highest logits is set to zero (gradients pass by a sigmoid), and a
    turn is a_t tanh(.). With l(s, T) = log(1 + e^T) - s T, T_ij = u_i . u_j / 2 and s_ij = 1 if labelled items i != j
    share a class (similar and dissimilar pairs have half the weight each), they minimise in turn:

    A: |l(x^, x) - (1 + mu_t) l(x, x)|, the second fixed: as hard as the pace allows, and no harder
    H: l(x, x) + l(x^, x) + omega_t L_c + eta mean ||u - sign(u)||^2, where over all items, v = sign(u(x)) held fixed,
       L_c = mean_ij (u^_i . u^_j - v_i . v_j)^2 / bits^2 + mean_i ||u^_i - v_i||^2 / bits, u^ = tanh(u(x^))

    mu_t, r_t and a_t rise in proportion to t = progress / pace_share, up to t = 1, and omega_t as exp(-5 (1 - t)^2).

    A-Net acts on pixels if the whole backbone is trained (finetune="all"). Otherwise it acts on mapped features:
    occlusion sets blocks of features to zero and rotation turns random pairs of features, an angle for each pair. That
    is an analogue, not the published operation.
    """

    paper: ClassVar[str] = (
        "SSAH: Semi-supervised Adversarial Deep Hashing with Self-paced Hard Sample Generation, AAAI 2020"
    )
    departs: ClassVar[str] = (
        "a reconstruction; on frozen features, blocks of features are occluded and pairs of them rotated"
    )
    trial_settings: ClassVar[dict[str, Any]] = {"player_width": 16}
    needs_other_gradient: ClassVar[bool] = False  # the second view is not used

    bits: int = setting(48, "length of a code, one output of u per bit", at_least=1)
    adversary: bool = setting(
        True, "whether A-Net chooses cells and angles; False draws them at random and trains no A-Net, an ablation"
    )
    consistent_weight: float = setting(1.0, "last omega_t, weight of L_c; ours", at_least=0)
    quantisation_weight: float = setting(0.1, "eta, weight of the distance to signs; ours", at_least=0)
    excess: float = setting(
        1.0, "last mu_t: the loss of hard items aimed at, above that of originals; ours", at_least=0
    )
    occlusion: float = setting(0.3, "last r_t: share of cells set to zero; ours", at_least=0, below=1)
    angle: float = setting(30.0, "last a_t: largest rotation in degrees; ours", at_least=0, at_most=180)
    pace_share: float = setting(
        0.7, "share of training in which items become harder; 0: they are hard at once; ours", at_least=0, at_most=1
    )
    learning_rate: float = setting(0.01, "of H-Net, peak of the schedule (AdamW); ours, chosen on digits", above=0)
    player_rate: float = setting(1e-4, "learning rate of A-Net (Adam); ours", above=0)
    player_width: int | None = setting(
        None,
        "hidden units of A-Net on features, or channels of its first convolution on pixels; None: 128 or 16; ours",
        above=0,
    )

    @property
    def _net(self) -> Players:
        assert isinstance(self.network_, Players)
        return self.network_

    def check_labels(self, labels: Labels) -> None:
        """Require labelled and unlabelled items, and both a similar and a dissimilar pair."""
        super().check_labels(labels)
        require_triplets(labels)

    def network(self, n_features: int, n_seen: int, n_novel: int) -> Players:
        """Return the hash layer, and A-Net on pixels or features."""
        adversary: Distorter | ImageDistorter
        if self._trains_whole_backbone:
            adversary = ImageDistorter(SCALES, self.player_width or CHANNELS)
        else:
            adversary = Distorter(n_features, self.player_width or HIDDEN)
        return Players(nn.Linear(n_features, self.bits), adversary)

    def optimisers(self) -> list[Optimizer]:
        """Return one optimiser each for H-Net with the backbone and for A-Net."""
        hashing = [{"params": list(self._net.hashing.parameters()), "lr": self.learning_rate}, *self.backbone_group()]
        return [
            AdamW(hashing, weight_decay=self.weight_decay, fused=True),
            Adam(self._net.adversary.parameters(), lr=self.player_rate, fused=True),
        ]

    def pace(self, fraction_done: float) -> tuple[Pace, float]:
        """Return mu_t, r_t and a_t, and the weight omega_t of the consistent loss."""
        t = min(fraction_done / self.pace_share, 1.0) if self.pace_share > 0 else 1.0
        pace = Pace(t * self.excess, t * self.occlusion, t * math.radians(self.angle))
        return pace, self.consistent_weight * ramp_up(t)

    def step(self, batch: Batch, optimisers: list[Optimizer]) -> Terms:
        """Let A-Net and H-Net take one step each."""
        batch = self.played(batch)
        x, labels = batch.x.detach(), batch.gather_labelled(batch.labels)
        similar = same_class(labels, labels)
        pace, consistent_weight = self.pace(batch.fraction_done)
        u = self.output(batch.x)
        for_hashing, for_adversary = optimisers
        terms: Terms = {}
        if self.adversary:
            hard = self.output(self.hard(x, pace, batch), is_real=False)
            terms = self.adversary_terms(u.detach(), hard, similar, pace)
            descend(parameters_of(for_adversary), for_adversary, terms, self.clip_norm)
        with torch.no_grad():
            hard = self.hard(x, pace, batch)
        hashing = self.hash_terms(u, self.output(hard, is_real=False), similar, consistent_weight)
        descend(parameters_of(for_hashing), for_hashing, hashing, self.clip_norm)
        return hashing | terms

    def hard(self, x: Tensor, pace: Pace, batch: Batch | None = None) -> Tensor:
        """Return the hard version of each item, by A-Net or at random; the items may be those of a batch."""
        batch = batch or Batch(torch.arange(len(x)), x, x, torch.full((len(x),), -1), 0)
        logits, turns = self._net.adversary(x)
        if self.adversary:
            angles = pace.angle * turns.tanh()
        else:
            logits = [batch.drawn(torch.rand, part.shape[1]) for part in logits]
            angles = pace.angle * (2 * batch.drawn(torch.rand, turns.shape[1]) - 1)
        keep = [kept_cells(part, pace.share) for part in logits]
        scale = batch.drawn(partial(torch.randint, len(SCALES)))
        return self._net.adversary.distorted(x, keep, angles, scale)

    def adversary_terms(self, u: Tensor, hard: Tensor, similar: Tensor, pace: Pace) -> Terms:
        """Return the loss of A-Net, from u of items and of their hard versions, (B, bits) each, labelled ones first.

        similar: the pairs of the labelled items of all processes.
        """
        n = len(processes.own_rows(similar))
        allowed = (1 + pace.excess) * pair_loss(u[:n], u[:n], similar)
        excess = pair_loss(hard[:n], u[:n], similar) - allowed.detach()
        return {"adversary": excess * processes.mean(excess.detach()).sign()}  # its size, over all processes

    def hash_terms(self, u: Tensor, hard: Tensor, similar: Tensor, consistent_weight: float) -> Terms:
        """Return the losses of H-Net, from u of items and of their hard versions, (B, bits) each."""
        n, signs = len(processes.own_rows(similar)), _signs(u)
        return {
            "pairs": pair_loss(u[:n], u[:n], similar),
            "hard_pairs": pair_loss(hard[:n], u[:n], similar),
            "consistent": consistent_weight * consistent_loss(hard.tanh(), signs),
            "quantisation": self.quantisation_weight * (u - signs).square().sum(dim=1).mean(),
        }

    @torch.no_grad()
    def diagnostics(self, batch: Batch, data: Batches) -> dict[str, Any]:
        """Return the share of bits that differ between items and their hard versions."""
        with seeded(self.seed):
            x = self.played(batch).x
            hard = self.hard(x, self.pace(batch.fraction_done)[0], batch)
            flipped = _signs(self.output(x)) != _signs(self.output(hard))
        return {"flipped_bits": float(flipped.float().mean())}

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Bits that differ in hard versions."""
        return (Panel("bits that hard versions flip", ("flipped_bits",), is_share=True),)


def kept_cells(logits: Tensor, share: float) -> Tensor:
    """Return 0 for the share of cells (B, n) with the highest logits, else 1; gradients are those of 1 - sigmoid."""
    occluded = torch.zeros_like(logits)
    occluded.scatter_(1, logits.topk(round(share * logits.shape[1]), dim=1).indices, 1.0)
    soft = logits.sigmoid()
    return 1 - occluded - (soft - soft.detach())


def pair_loss(a: Tensor, b: Tensor, similar: Tensor) -> Tensor:
    """Return the likelihood loss l(s, a_i . b_j / 2) over pairs i != j: the mean of similar and of dissimilar pairs.

    a, b (n, bits); similar bool, the pairs of the items of all processes; the mean of what these return is that of all
    pairs. A kind without pairs counts 0.
    """
    theta, own = a @ processes.gather(b).T / 2, processes.own(len(a))
    other = ~torch.eye(len(similar), dtype=torch.bool, device=a.device)
    losses, W = functional.softplus(theta) - similar[own] * theta, processes.world_size()
    kinds = similar & other, ~similar & other
    means = [W * (losses * kind[own]).sum() / kind.sum().clamp(min=1) for kind in kinds]
    return (means[0] + means[1]) / 2


def consistent_loss(hard: Tensor, signs: Tensor) -> Tensor:
    """Return L_c, from outputs of hard items in (-1, 1) and the signs of their originals, (B, bits) each.

    Pairs are those with the items of all processes.
    """
    bits = signs.shape[1]
    pairs = ((hard @ processes.gather(hard).T - signs @ processes.gather(signs).T) / bits).square().mean()
    return pairs + (hard - signs).square().mean()


def _signs(u: Tensor) -> Tensor:
    """Return the signs, +1 for 0, without a gradient."""
    return torch.where(u.detach() >= 0, 1.0, -1.0)

"""SSGAH, binary codes from real triplets and from triplets that a generator makes for unlabelled items."""

from collections.abc import Callable
from dataclasses import dataclass
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
from combemb.learning.objectives.image_players import ImageDiscriminator, ImageGenerator, random_noise
from combemb.learning.objectives.triplets import require_triplets, squared_distances, triplet_hinge, triplets
from combemb.learning.settings import setting
from combemb.system import processes
from combemb.system.machine import seeded

HIDDEN, CHANNELS = 512, 64  # width of the players on features and on pixels, unless it is set
FIRST_MOMENT = 0.5  # beta_1 of Adam for generator and discriminator

Triplets = tuple[Tensor, Tensor, Tensor]  # anchors, positives, negatives: positions in the batch
Made = tuple[Tensor, Tensor]  # a synthetic positive and a synthetic negative of each item


class Generator(nn.Module):
    """Two residual networks, each with noise of its own: an item -> one of its kind and one of another."""

    def __init__(self, n_features: int, width: int, n_noise: int):
        super().__init__()
        self.n_noise = n_noise
        self.positive, self.negative = (_layers(n_features + n_noise, width, n_features) for _ in range(2))

    def forward(self, x: Tensor, noise: tuple[Tensor, Tensor] | None = None) -> Made:
        """x (B, F), noise (B, n_noise) of each half -> synthetic positives and synthetic negatives, (B, F) each."""
        first, second = noise or random_noise(x, self.n_noise)
        return x + self.positive(torch.cat([x, first], dim=1)), x + self.negative(torch.cat([x, second], dim=1))


class Discriminator(nn.Module):
    """Logits of triplets, large for real ones; a pair is judged beside its anchor."""

    def __init__(self, n_features: int, width: int):
        super().__init__()
        self.layers = _layers(3 * n_features, width, 1)

    def forward(self, x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Judge triplets, three times (T, F) -> (T,)."""
        logits: Tensor = self.layers(torch.cat([x, positive, negative], dim=1))[:, 0]
        return logits


def _layers(n_inputs: int, width: int, n_outputs: int) -> nn.Sequential:
    first, second = (nn.Sequential(nn.Linear(n, width), nn.LeakyReLU(0.2)) for n in (n_inputs, width))
    return nn.Sequential(first, second, nn.Linear(width, n_outputs))


class Players(nn.Module):
    """The hash layer, the generator G and the discriminator D."""

    def __init__(self, hashing: nn.Module, generator: nn.Module, discriminator: nn.Module):
        super().__init__()
        self.hashing, self.generator, self.discriminator = hashing, generator, discriminator

    def forward(self, x: Tensor) -> Tensor:
        """x (B, F) -> h (B, bits) in (-1, 1)."""
        h: Tensor = self.hashing(x).tanh()
        return h


@dataclass(kw_only=True, eq=False, repr=False)
class SSGAH(DeepMethod, BinaryMethod):
    """Semi-supervised generative adversarial hashing (Wang, Hu, Cheng & Hou 2018): a reconstruction.

    Known are the three players, that G and D learn the distribution of triplets, and the names of the two ranking
    losses. Formulas and numbers are ours, since neither the authors' code nor their settings are public.

    Triplets (x, x+, x-) are real, from labels; G(x) = (x~+, x~-) makes synthetic ones for all items. With
    d(a, b) = ||h(a) - h(b)||^2 / 4, which is the Hamming distance of signs, and t_m(a, b, c) =
    max(0, m + d(a, b) - d(a, c)), they minimise in turn:

    D: -E log D(x, x+, x-) - E log(1 - D(x, x~+, x~-))
    G: -E log D(x, x~+, x~-) + lambda_a E[d(x, x~+) - d(x, x~-)]
    h: L_ssr + lambda_a L_ar + beta mean (|h| - 1)^2, synthetic items held fixed, where
       L_ssr = E t_m(x, x+, x-) + lambda_s E t_m(x, x~+, x~-)
       L_ar = E[t_ma(x, x+, x~+) + t_ma(x, x~-, x-)], over real triplets

    In the first steps G and D on one side and h on the other learn alone, with lambda_s = lambda_a = 0. With both set
    to 0 it is plain triplet hashing, and G and D do not learn. Embeddings are h, codes their signs.

    Players act on pixels, as convolutions, if the whole backbone is trained (finetune="all"). Otherwise they act on
    mapped features, as residual networks of linear layers: a counterpart in which G makes features, not images.
    """

    paper: ClassVar[str] = "Semi-supervised Generative Adversarial Hashing for Image Retrieval, ECCV 2018"
    departs: ClassVar[str] = "a reconstruction; on frozen features, players make features instead of images"
    trial_settings: ClassVar[dict[str, Any]] = {"player_width": 16}
    needs_other_gradient: ClassVar[bool] = False  # the second view is not used

    bits: int = setting(48, "length of a code, one output of h per bit", at_least=1)
    margin: float = setting(0.25, "m as a share of the bits; ours", at_least=0)
    adversary_margin: float = setting(0.125, "m_a as a share of the bits; ours", at_least=0)
    synthetic_weight: float = setting(0.5, "lambda_s, weight of synthetic triplets; ours", at_least=0)
    adversary_weight: float = setting(0.1, "lambda_a, weight of the adversary ranking loss; ours", at_least=0)
    quantisation_weight: float = setting(0.01, "beta, weight of the distance to signs; ours", at_least=0)
    alone_share: float = setting(
        0.2,
        "share of training in which h learns from real triplets alone, and G and D without h; ours",
        at_least=0,
        at_most=1,
    )
    learning_rate: float = setting(0.01, "of h, peak of the schedule (AdamW); ours, chosen on digits", above=0)
    player_rate: float = setting(2e-4, "learning rate of G and D (Adam, beta_1 = 0.5); ours", above=0)
    player_width: int | None = setting(
        None,
        "hidden units of G and D on features, or channels of their first convolution on pixels; None: 512 or 64; ours",
        above=0,
    )
    n_noise: int = setting(16, "random numbers that each half of G gets; ours", at_least=0)

    @property
    def _net(self) -> Players:
        assert isinstance(self.network_, Players)
        return self.network_

    @property
    def plays(self) -> bool:
        """Whether synthetic items are used at all."""
        return self.synthetic_weight > 0 or self.adversary_weight > 0

    def check_labels(self, labels: Labels) -> None:
        """Require labelled and unlabelled items, and a real triplet."""
        super().check_labels(labels)
        require_triplets(labels)

    def network(self, n_features: int, n_seen: int, n_novel: int) -> Players:
        """Return the hash layer, and G and D on pixels or features."""
        hashing = nn.Linear(n_features, self.bits)
        if self._trains_whole_backbone:
            width = self.player_width or CHANNELS
            return Players(hashing, ImageGenerator(width, self.n_noise), ImageDiscriminator(width))
        width = self.player_width or HIDDEN
        return Players(hashing, Generator(n_features, width, self.n_noise), Discriminator(n_features, width))

    def optimisers(self) -> list[Optimizer]:
        """Return one optimiser each for h with the backbone, D and G."""
        hashing = [
            {"params": list(self._net.hashing.parameters()), "lr": self.learning_rate},
            *self.backbone_group(),
        ]
        players = self._net.discriminator, self._net.generator
        return [
            AdamW(hashing, weight_decay=self.weight_decay, fused=True),
            *(Adam(p.parameters(), lr=self.player_rate, betas=(FIRST_MOMENT, 0.999), fused=True) for p in players),
        ]

    def step(self, batch: Batch, optimisers: list[Optimizer]) -> Terms:
        """Let D, G and h take one step each."""
        batch = self.played(batch)
        labels, is_alone = batch.gather_labelled(batch.labels), batch.fraction_done < self.alone_share
        real = triplets(same_class(labels, labels), batch.generator)
        h, made, terms = self.output(batch.x), None, {}
        for_h, for_judge, for_maker = optimisers
        if self.plays:
            x = batch.x.detach()
            noise = batch.drawn(torch.randn, self.n_noise), batch.drawn(torch.randn, self.n_noise)
            made = self._net.generator(x, noise)
            terms = self.judge_terms(x, batch.gather_labelled(x), real, made)
            descend(parameters_of(for_judge), for_judge, terms, self.clip_norm)
            making = self.maker_terms(x, made, None if is_alone else h.detach())
            descend(parameters_of(for_maker), for_maker, making, self.clip_norm)
            terms |= making
            made = None if is_alone else (made[0].detach(), made[1].detach())
        hashing = self.hash_terms(h, real, made, batch.gather)
        descend(parameters_of(for_h), for_h, hashing, self.clip_norm)
        return hashing | terms

    def judge_terms(self, x: Tensor, labelled: Tensor, real: Triplets, made: Made) -> Terms:
        """Return the loss of D: -E log D of real triplets - E log(1 - D) of synthetic ones.

        Real triplets are positions in the labelled items of all processes; each process judges its share of them.
        """
        W = processes.world_size()
        anchors, positives, negatives = (part[processes.rank() :: W] for part in real)
        found = self._net.discriminator(labelled[anchors], labelled[positives], labelled[negatives])
        synthetic = self._net.discriminator(x, made[0].detach(), made[1].detach())
        mean = W * functional.softplus(-found).sum() / max(len(real[0]), 1)
        return {"judge": mean + functional.softplus(synthetic).mean()}

    def maker_terms(self, x: Tensor, made: Made, h: Tensor | None) -> Terms:
        """Return the losses of G: -E log D, and lambda_a E[d(x, x~+) - d(x, x~-)] unless it learns without h."""
        terms = {"maker": functional.softplus(-self._net.discriminator(x, *made)).mean()}
        if h is not None and self.adversary_weight > 0:
            near, far = (_distance(h, self.output(part, is_real=False)) for part in made)
            terms["maker_ranking"] = self.adversary_weight * (near - far).mean()
        return terms

    def hash_terms(
        self, h: Tensor, real: Triplets, made: Made | None, gathered: Callable[[Tensor], Tensor] = lambda x: x
    ) -> Terms:
        """Return the losses of h (B, bits), of real triplets alone if nothing is made.

        Real triplets are positions in what `gathered` returns, the rows of all processes.
        """
        anchors, positives, negatives = real
        everyone = gathered(h)
        near = _distance(everyone[anchors], everyone[positives])
        far = _distance(everyone[anchors], everyone[negatives])
        m, m_a = self.margin * self.bits, self.adversary_margin * self.bits
        terms = {
            "ranking": triplet_hinge(near, far, m),
            "quantisation": self.quantisation_weight * (h.abs() - 1).square().mean(),
        }
        if made is not None:
            made_near, made_far = (_distance(h, self.output(part, is_real=False)) for part in made)
            own_near, own_far = gathered(torch.stack([made_near, made_far], dim=1))[anchors].unbind(dim=1)
            harder = triplet_hinge(near, own_near, m_a) + triplet_hinge(own_far, far, m_a)
            terms["synthetic_ranking"] = self.synthetic_weight * triplet_hinge(made_near, made_far, m)
            terms["adversary_ranking"] = self.adversary_weight * harder
        return terms

    @torch.no_grad()
    def diagnostics(self, batch: Batch, data: Batches) -> dict[str, Any]:
        """Return mean distances of synthetic positives and negatives, in bits, and the spread of D's logits."""
        if not self.plays:
            return {}
        with seeded(self.seed):
            x = self.played(batch).x
            made = self._net.generator(x)
            h = self.output(x)
            near, far = (float(_distance(h, self.output(part)).mean()) for part in made)
            spread = float(self._net.discriminator(x, *made).std())
        return {"synthetic_positive": near, "synthetic_negative": far, "judge_spread": spread}

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Distances of synthetic items; positives should be nearer."""
        names = ("synthetic_positive", "synthetic_negative")
        return (Panel("distance of synthetic items, bits", names),) if self.plays else ()


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """Return d, the Hamming distance if both are signs."""
    return squared_distances(a, b) / 4

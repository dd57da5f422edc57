"""The training schedule of older releases: SGD with momentum, whose learning rate falls in a step."""

from dataclasses import dataclass

from torch.optim import SGD, Optimizer

from combemb.learning.deep import DeepMethod
from combemb.learning.settings import setting


@dataclass(kw_only=True, eq=False, repr=False)
class WithSGD(DeepMethod):
    """A deep method that can also be trained as in its release, from pixels and with hundreds of epochs."""

    optimiser: str = setting(
        "adamw",
        "adamw with a warm-up and a cosine (ours), or sgd with a step (the release's)",
        choices=("adamw", "sgd"),
    )
    momentum: float = setting(0.9, "momentum of SGD; the release's", at_least=0, below=1)
    decay_share: float = setting(
        0.85,
        "share of the training after which the learning rate of SGD is a tenth; the release's 170 of 200 epochs",
        above=0,
        at_most=1,
    )

    def optimisers(self) -> list[Optimizer]:
        """Return one AdamW, or one SGD, for all parameters."""
        if self.optimiser == "adamw":
            return super().optimisers()
        groups = [{"params": list(self.network_.parameters()), "lr": self.learning_rate}, *self.backbone_group()]
        return [SGD(groups, momentum=self.momentum, weight_decay=self.weight_decay)]

    def rate(self, step: int, n_steps: int) -> float:
        """Return the factor on the learning rates: of AdamW as in every deep method, of SGD a step."""
        if self.optimiser == "adamw":
            return super().rate(step, n_steps)
        return 1.0 if step < self.decay_share * n_steps else 0.1

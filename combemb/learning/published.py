"""The form of a method in its release: a small ResNet on pixels, trained by SGD with momentum for many epochs."""

from dataclasses import dataclass
from typing import Any, Self

from torch.optim import SGD, Optimizer

from combemb.learning.deep import DeepMethod
from combemb.learning.settings import setting


@dataclass(kw_only=True, eq=False, repr=False)
class WithSGD(DeepMethod):
    """A deep method that can also be trained as in its release, from pixels and with hundreds of epochs."""

    optimiser: str = setting(
        "adamw",
        "adamw with a warm-up and a cosine (ours), or sgd with the schedule of the release",
        choices=("adamw", "sgd"),
    )
    momentum: float = setting(0.9, "momentum of SGD; the release's", at_least=0, below=1)

    @classmethod
    def as_published(cls, **settings: Any) -> Self:
        """Return the form of the release for CIFAR-10, which takes a GPU.

        A ResNet-18 of width 64 on pixels, whose last stage is trained after the first stages; SGD, 200 epochs, batches
        of 128, gradients as they are. Heads and centres see the features of the backbone as they are. Views are
        mirrored and cropped; the releases shift them by up to 4 pixels. The first stages have recipes of their own,
        with AdamW. What a method has otherwise, its own `as_published` sets.

        Parameters
        ----------
        **settings
            Any other settings.
        """
        published: dict[str, Any] = {"backbone": "resnet18", "backbone_width": 64, "image_size": 32, "finetune": "last"}
        published |= {"crop_area": 0.75, "colour": 0.0, "grey": 0.0, "backbone_rate": 1.0, "balanced_labels": False}
        published |= {"optimiser": "sgd", "learning_rate": 0.1, "weight_decay": 1e-4, "epochs": 200, "batch_size": 128}
        published |= {"clip_norm": 1e6}
        return cls(**{**published, **settings})

    def sgd_rate(self, t: float) -> float:
        """Return the factor on the learning rate of SGD after a share t of the training: a tenth after 170 of 200."""
        return 1.0 if t < 0.85 else 0.1

    def optimisers(self) -> list[Optimizer]:
        """Return one AdamW, or one SGD, for all parameters."""
        if self.optimiser == "adamw":
            return super().optimisers()
        groups = [{"params": list(self.network_.parameters()), "lr": self.learning_rate}, *self.backbone_group()]
        return [SGD(groups, momentum=self.momentum, weight_decay=self.weight_decay)]

    def rate(self, step: int, n_steps: int) -> float:
        """Return the factor on the learning rates: of AdamW as in every deep method, of SGD that of the release."""
        return super().rate(step, n_steps) if self.optimiser == "adamw" else self.sgd_rate(step / n_steps)

"""First stages: training of a backbone before a method starts, shared by all methods that need the same one."""

from combemb.learning.pretraining.stage import FirstStage, weights_after

__all__ = ["FirstStage", "weights_after"]

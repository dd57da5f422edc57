"""Gradient reversal, by which one loss has two players: what comes after it minimises, what comes before maximises."""

from torch import Tensor


def gradient_reversed(x: Tensor) -> Tensor:
    """Return x itself, with the negative gradient (Ganin & Lempitsky, ICML 2015).

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> gradient_reversed(x).square().sum().backward()
    >>> x.grad
    tensor([-2., -4.])
    """
    return 2 * x.detach() - x

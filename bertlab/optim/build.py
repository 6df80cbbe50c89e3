"""Parameter groups and the optimizer."""

from typing import Any

from torch import nn
from torch.optim import AdamW

from bertlab.optim.config import OptimizerConfig

FUSED_DEVICES = ("cpu", "cuda")


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split the trainable parameters by whether they are decayed: matrices are, biases and norms are not.

    Embeddings are matrices. A tied parameter is listed once.

    Args:
        model: the model; parameters that need no gradient are left out.
        weight_decay: the decay of parameters with at least two axes.

    Returns:
        Groups for a torch optimizer, at most two, none of them empty.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trainable if parameter.ndim >= 2], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trainable if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(model: nn.Module, config: OptimizerConfig, *, fused: bool | None = None) -> AdamW:
    """AdamW over ``parameter_groups``, each group at the peak learning rate.

    Args:
        model: the model, on the device where it is trained.
        config: the optimizer's options; ``max_grad_norm`` is the caller's business.
        fused: whether one kernel updates all parameters. None: where the devices of the parameters have that kernel.
            Precision ``16-mixed`` needs False: a fused optimizer undoes the gradient scale itself, too late for
            clipping.

    Raises:
        ValueError: when no parameter of the model is trainable.
    """
    groups = parameter_groups(model, config.weight_decay)
    if fused is None:
        fused = all(
            parameter.device.type in FUSED_DEVICES and parameter.is_floating_point()
            for group in groups
            for parameter in group["params"]
        )
    return AdamW(
        groups,
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=fused,
        foreach=not fused,
    )

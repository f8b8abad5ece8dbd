"""Lion: the sign of a momentum. Chen et al. 2023, Symbolic Discovery of Optimization Algorithms."""

# torch's own optimizers use these list operations too, but torch marks them private.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
from collections import defaultdict

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from mupscale.optim.groupwise import GroupwiseOptimizer
from mupscale.optim.options import Group, check_number, check_numbers
from mupscale.optim.sharding import local

Tensors = list[Tensor]
Triple = tuple[Tensor, Tensor, Tensor]


class Lion(GroupwiseOptimizer):
    """W ← W − lr·λ·W − lr·sign(β1·m + (1 − β1)·g), then m ← β2·m + (1 − β2)·g.

    Every entry moves by `lr`, so choose `lr` 3 to 10 times smaller than for AdamW, and
    `weight_decay` larger by the same factor. The momentum is stored as "exp_avg", as in the
    authors' code.

    >>> W = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    >>> optimizer = Lion([W], lr=0.5)
    >>> W.grad = torch.tensor([0.1, -7.0, 0.0])
    >>> optimizer.step()
    >>> W.tolist()
    [0.5, -1.5, 3.0]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def check_group(self, group: Group) -> None:
        check_number("lr", group["lr"], example=1e-4)
        check_number("weight_decay", group["weight_decay"], example=0.1)
        check_numbers("betas", group["betas"], example=(0.9, 0.99))
        for index, beta in enumerate(group["betas"]):
            check_number(f"betas[{index}]", beta, example=(0.9, 0.99)[index], below=1)

    def step_group_(self, group: Group, params: Tensors) -> None:
        for triples in self._alike(params):
            params_here, grads, momenta = map(list, zip(*triples, strict=True))
            step_(params_here, grads, momenta, group)

    def _alike(self, params: Tensors) -> list[list[Triple]]:
        """(parameter, gradient, momentum) on this rank, in lists of one device and type, for which
        torch has fast kernels.
        """
        lists: defaultdict[tuple[torch.device, torch.dtype], list[Triple]] = defaultdict(list)
        for p in params:
            assert p.grad is not None
            state = self.state[p]
            if "exp_avg" not in state:
                state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            triple = local(p, p), local(p.grad, p).to(p.dtype), local(state["exp_avg"], p)
            lists[p.device, p.dtype].append(triple)
        return list(lists.values())


def step_(params: Tensors, grads: Tensors, momenta: Tensors, group: Group) -> None:
    """One step on tensors of one device and type."""
    lr, (beta1, beta2) = float(group["lr"]), group["betas"]
    updates = torch._foreach_mul(momenta, beta1)
    torch._foreach_add_(updates, grads, alpha=1 - beta1)
    torch._foreach_sign_(updates)
    torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
    torch._foreach_add_(params, updates, alpha=-lr)
    torch._foreach_mul_(momenta, beta2)
    torch._foreach_add_(momenta, grads, alpha=1 - beta2)

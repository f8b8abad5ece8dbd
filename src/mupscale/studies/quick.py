"""The study that is run where nothing else is said: a small reference model that one core trains in about 15 seconds.

12 heads, as the paper's models have, so that r can be 1, 2, 3, 4, 6 and 12. The base is a third as wide and half as
deep, so that rules differ by more than their treatment of sharing. σ0 = 0.1 at width 32 is GPT-2's 0.02 at 768: σ√n is
what counts. ε is the paper's, 1e-9/n. Two tokens a parameter and a warmup of 50 steps were chosen in pilots: with the
paper's 2 % of so few steps, rates near the optimum were unstable.
"""

from typing import Any

QUICK: dict[str, Any] = {
    "name": "quick",
    "rules": ["gqa-mup"],
    "seeds": [42, 43, 44],
    "space": {"lr": ["2^-8", "2^-4"]},
    "model": {"name": "study"},
    "base": {"width": 32, "depth": 1, "r": 1},
    "data": {"sequence": 64},
    "optimizer": {"weight_decay": 0.1, "eps": 1e-9 / 32, "std": 0.1},
    "length": {"tokens_per_parameter": 2.0, "batch": 16, "warmup": 50},
    "record": {"eval_batches": 32},
}

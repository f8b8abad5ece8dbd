"""Studies that come with the package: the default study and the demo.

The default trains a small reference model, about 15 seconds per run on one core. It has 12 heads,
like the paper's models, so that r can be 1, 2, 3, 4, 6 and 12. The base is a third as wide and half
as deep, so that rules differ in more than their treatment of sharing. σ0 = 0.1 at width 32
corresponds to GPT-2's 0.02 at width 768, because σ√n matters. ε is the paper's, 1e-9/n. Two tokens
per parameter and a warmup of 50 steps come from pilot runs: with the paper's 2 % of such a short
run, rates near the optimum were unstable. The demo's model is thinner, and takes about five
seconds.
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

DEMO: dict[str, Any] = QUICK | {
    "name": "demo",
    "vary": {"n_kv_heads": [12, 6, 3]},
    "space": {"lr": ["2^-8", "2^-4.5"]},
    "search": {"method": "grid", "step": 0.5},
    "model": {"name": "study", "width": 48, "head_dim": 4},
    "length": {"steps": 400, "batch": 8, "warmup": 40},
}

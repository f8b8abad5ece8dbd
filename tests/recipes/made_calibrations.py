"""A trainer whose answers are known: two bowls, one for key/value weights, which see the rate times
their factor.
"""

BOWLS = """
import math
import random

STILL, LOSS, SHARE = {still}, {loss}, 0.3


def train(trial):
    rates = {{p["role"]: p["lr"] for p in trial.plan["parameters"].values()}}
    factor = math.log2(rates["key"] / rates["query"])
    lever = math.log2((1 + math.sqrt(trial.variant["r"])) / 2)
    others = SHARE * (STILL - LOSS) * lever
    x = math.log2(trial.lr) + 6
    bowls = (1 - SHARE) * (x - others) ** 2 + SHARE * (x + factor - others - LOSS * lever) ** 2
    source = random.Random(f"{{trial.seed}} {{trial.lr}} {{factor:.6f}} {{lever:.6f}}")
    noise = source.gauss(0, {noise})
    return {{"loss": 2 + 0.05 * bowls + 0.01 * trial.seed + noise, "tokens": 1000, "steps": 10}}
"""

PROXY = {
    "name": "proxy",
    "seeds": [1, 2, 3],
    "space": {"lr": ["2^-8", "2^-4"]},
    "engine": {"workers": 0},
    "trainer": {
        "function": "bowls:train",
        "target": "gpt:cpu_64_r1,n_heads=16,n_kv_heads=16,head_dim=4",
    },
}

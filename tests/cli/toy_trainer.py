"""A trainer of three lines, for tests of the command line."""

TOY = """
import math

def train(trial):
    x = math.log2(trial.lr)
    noise = 0.004 * math.sin(50 * x + trial.seed)
    return {"loss": 2 + 0.05 * (x + 6.2) ** 2 + noise, "tokens": 1000}

def diverging(trial):
    return math.nan

def failing(trial):
    raise RuntimeError("<b>no such thing</b>")
"""

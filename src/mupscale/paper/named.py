"""The experiments by name. Each is imported when needed."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from mupscale.errors import UnknownNameError

if TYPE_CHECKING:
    from mupscale.paper.experiment import Experiment

EXPERIMENTS: Mapping[str, str] = {
    "expected-norms": "figure: spectral and expected norm of the repeated key/value matrix over r",
    "coordinate-check": "three figures: activations and weights over r under vanilla μP, weights "
    "under GQA-μP",
    "gqa-ablation": "figure: loss over learning rate for each r, under SP, vanilla μP, CompleteP "
    "and GQA-μP",
    "weight-decay": "figure and table: best learning rate and decay over three sizes, and their "
    "variance",
    "tau-epoch": "figure: the same runs over τ_epoch",
    "horizon": "figure: a proxy with r = 1, 2, 4, 8 and a target with r = 4, at 20 tokens per "
    "parameter",
    "configurations": "two tables: every model of the paper, computed and compared digit by digit",
    "parameterization": "table: the rules, derived and compared cell by cell",
    "adam-epsilon": "claim: updates decay with width unless ε does",
    "depth": "claim: residual branches need a factor 1/L; 1 and 1/√L do not suffice",
    "decay-balance": "claim: decay that grows faster than n swamps learning; slower, it vanishes",
    "gqa-noise": "claim: with fewer key/value heads, the noise between seeds grows",
    "kv-factor": "ours: which key/value factor keeps the best learning rate the same, and which "
    "gives the lowest loss?",
    "muon": "ours: is the best learning rate the same for every r under Muon?",
    "sgd": "ours: is the best learning rate the same for every r under SGD?",
    "width": "ours: does the learning rate that is best at a small width stay best at eight times "
    "that width?",
    "factors": "ours: do values for each kind of weight, found at a small width, reach plain AdamW "
    "tuned at eight times that width?",
    "vocabulary": "ours: does the best rate of the embedding move with the width, at three "
    "vocabularies?",
    "sharing": "ours: does the key/value factor lower the loss at equal steps, on keys, on values?",
    "sharing-batch": "ours: does the key/value factor gain more with four times the batch?",
    "sizes": "ours: does the best learning rate move over sizes at fixed batch and steps?",
    "depth-from-one": "ours: does the best learning rate move over depth from a base of one block?",
}
"""Each experiment, with what it shows. Its module has the same name."""


def experiment_named(name: str) -> "Experiment":
    """The experiment of that name.

    >>> experiment_named("gqa-ablation").name
    'gqa-ablation'
    """
    if name not in EXPERIMENTS:
        raise UnknownNameError("experiment", name, EXPERIMENTS)
    module = import_module(f"mupscale.paper.{name.replace('-', '_')}")
    return module.EXPERIMENT

"""The experiments by name. Each is loaded when it is asked for."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from mupscale.errors import UnknownNameError

if TYPE_CHECKING:
    from mupscale.paper.experiment import Experiment

EXPERIMENTS: Mapping[str, str] = {
    "expected-norms": "figure: spectral and expected norm of the repeated key/value matrix against "
    "r",
    "coordinate-check": "three figures: activations and weights over r under vanilla μP, weights "
    "under GQA-μP",
    "gqa-ablation": "figure: loss over rate for each r, under SP, vanilla μP, CompleteP and GQA-μP",
    "weight-decay": "figure and table: best rate and decay over three sizes, and their variance",
    "tau-epoch": "figure: the same runs over τ_epoch",
    "horizon": "figure: a proxy with r = 1, 2, 4, 8 and a target with r = 4, at 20 tokens a "
    "parameter",
    "configurations": "two tables: every model of the paper, computed and compared digit by digit",
    "parameterization": "table: the rules, derived and compared cell by cell",
    "adam-epsilon": "claim: updates decay with width unless ε does",
    "depth": "claim: residual branches need 1/L; 1 and 1/√L are not enough",
    "decay-balance": "claim: decay that grows faster than n swamps learning, and slower vanishes",
    "gqa-noise": "claim: with few key/value heads the noise from seed to seed grows",
    "kv-factor": "ours: which key/value factor holds the best rate still, and which gives the "
    "lowest loss?",
    "muon": "ours: does the best rate hold over r under Muon?",
    "sgd": "ours: does the best rate hold over r under SGD?",
}
"""Each experiment with what it shows; its module has the same name."""


def experiment_named(name: str) -> "Experiment":
    """The experiment of that name.

    >>> experiment_named("gqa-ablation").name
    'gqa-ablation'
    """
    if name not in EXPERIMENTS:
        raise UnknownNameError("experiment", name, EXPERIMENTS)
    module = import_module(f"mupscale.paper.{name.replace('-', '_')}")
    return module.EXPERIMENT

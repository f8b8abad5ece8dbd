"""The paper's figures, tables and claims, and questions of our own, each as a named experiment."""

from mupscale.paper.named import EXPERIMENTS, experiment_named

__all__ = ["EXPERIMENTS", "experiment_named"]

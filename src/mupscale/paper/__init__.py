"""The paper's figures, tables and claims, each as a named experiment."""

from collections.abc import Mapping

EXPERIMENTS: Mapping[str, str] = {
    "expected-norms": "spectral and expected norm of the repeated key/value matrix against r",
    "coordinate-check": "activations and weights over r under vanilla μP, weights under GQA-μP: three figures",
}
"""Each experiment of the command line with what it shows; its module has the same name."""

"""Theory: from what a weight is to what it gets. Symbolic, without torch."""

from mupscale.theory.derivation import derive
from mupscale.theory.formulas import Dimension, Expr
from mupscale.theory.optimizers import (
    DECAYS,
    OPTIMIZERS,
    RUNNABLE,
    Decay,
    Optimizer,
    StepSizes,
    name_of_class,
    optimizer_named,
)
from mupscale.theory.rule_files import read_rule, rule_named
from mupscale.theory.rules import RULES, Rule
from mupscale.theory.runs import (
    RUN_CHOICES,
    RunFactors,
    RunScaling,
    RunSize,
    derive_run,
    scaled_beta,
)
from mupscale.theory.scaling import FIELDS, LABELS, Factors, Scaling
from mupscale.theory.steps import Step
from mupscale.theory.tables import (
    RuleTable,
    compare_optimizers,
    optimizers_to_text,
    parameterization,
)
from mupscale.theory.units import (
    Adapter,
    Dense,
    Embedding,
    Expert,
    Fused,
    KeyValue,
    LowRank,
    Readout,
    Residual,
    Router,
    Table,
    Unit,
    Vector,
    unit_named,
)

__all__ = [
    "DECAYS",
    "FIELDS",
    "LABELS",
    "OPTIMIZERS",
    "RULES",
    "RUNNABLE",
    "RUN_CHOICES",
    "Adapter",
    "Decay",
    "Dense",
    "Dimension",
    "Embedding",
    "Expert",
    "Expr",
    "Factors",
    "Fused",
    "KeyValue",
    "LowRank",
    "Optimizer",
    "Readout",
    "Residual",
    "Router",
    "Table",
    "Rule",
    "RunFactors",
    "RunScaling",
    "RunSize",
    "Scaling",
    "StepSizes",
    "Step",
    "RuleTable",
    "Unit",
    "Vector",
    "compare_optimizers",
    "derive",
    "derive_run",
    "name_of_class",
    "optimizer_named",
    "optimizers_to_text",
    "parameterization",
    "read_rule",
    "rule_named",
    "scaled_beta",
    "unit_named",
]

"""`coordinate_check`: does a rule hold on this model? Slopes with intervals, and a verdict."""

import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mupscale.checks.judging import Criteria, Finding, coherences, findings
from mupscale.checks.probe import Build, Loss, Making, Planner, Probe, Setup, run_probe
from mupscale.checks.result import CheckResult
from mupscale.checks.statistics import MAPS, Quantity, Run
from mupscale.data.corpus import Tokens
from mupscale.engines import Engine, run_jobs
from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.reading import Reading
from mupscale.reading.config import KV_HEADS, WIDTH
from mupscale.targets import Family
from mupscale.targets.keys import LAYERS
from mupscale.theory import Rule, rule_named

QUANTITIES: Mapping[str, Quantity] = {
    **dict.fromkeys(("n_kv_heads", "kv_heads", "r", "repetitions", *KV_HEADS), "r"),
    **dict.fromkeys(("width", "n_embd", "d_model", *WIDTH), "width"),
    **dict.fromkeys(("depth", *LAYERS), "depth"),
}
"""What each name of an argument varies."""


def coordinate_check(
    build: Build,
    vary: Mapping[str, Sequence[int]],
    *,
    rule: str | Rule = "gqa-mup",
    seeds: int | Sequence[int] = 5,
    steps: int = 4,
    data: str | Tokens | Making = "python-stdlib",
    setup: Setup = Setup(),  # noqa: B008
    base: int | None = None,
    planner: Planner | None = None,
    loss: Loss | None = None,
    reading: Reading | None = None,
    criteria: Criteria = Criteria(),  # noqa: B008
    engine: Engine | None = None,
    folder: Path | str | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
    remark: Callable[[str], None] = lambda text: None,
) -> CheckResult:
    """Train a model for a few steps at each value and seed, and judge whether weights and updates
    keep their size.

    build    function of one argument that makes the model: build(n_kv_heads=4) vary
    {"n_kv_heads": [12, 6, 4, 3, 2, 1]}, or width or depth, by any of the names that configs use
    rule     the rule of the plan; `planner(model, base)` makes a plan of your own instead seeds
    how many, or which; at least two data     a corpus by name, as for training; an array of tokens;
    or, with a loss of your own, a function of the
             seed that makes a batch of any kind: images and labels, say
    setup    optimizer, base rate, batch and so on base     the value that counts as tuned; the
    least width, a depth of 1, or the most key/value heads, unless given loss     loss(model,
    batch), for a model that does not give logits of the next token; the batch is what `data`
             makes, or (inputs, targets) of tokens
    reading  what the model cannot say by itself: roles, ignored keys, inputs (default: of a
    `Family`, the
             mupscale.toml beside its model; with a planner, what the planner says)
    engine   where the runs are carried out; local processes, one a core, unless given folder   keep
    the runs there as JSON lines; what is there is not run again, also when seeds or values are
    added report   hears how many runs are done, and of how many; `remark` of what a reader should
    know

    >>> from mupscale.models import GPT, GPTConfig
    >>> def build(n_kv_heads):
    ...     return GPT(GPTConfig(width=32, depth=1, n_heads=4, n_kv_heads=n_kv_heads, vocabulary=256, context=64))
    >>> from mupscale.engines import Local
    >>> small = Setup(batch=1, sequence=64)
    >>> result = coordinate_check(build, {"n_kv_heads": [4, 2, 1]}, steps=1, setup=small, engine=Local(workers=0))
    >>> result.quantity, result.x
    ('r', (1, 2, 4))
    """
    name, values, quantity = _varied(vary)
    chosen = _seeds(seeds)
    if steps < 1:
        raise DimensionError(f"steps={steps} leaves no update to measure. Take at least 1.")
    if callable(data) and loss is None:
        raise OptionError(
            "data is a function that makes batches of your own. Give loss= too: what to do with "
            "them."
        )
    rule = rule_named(rule) if isinstance(rule, str) else rule
    tuned = _base(name, values) if base is None else base
    said = _said(build, reading)
    jobs = {
        f"{name}={value} seed={seed}": Probe(
            build, name, value, tuned, seed, steps, rule, setup, data, planner, loss, said
        )
        for value in values
        for seed in chosen
    }  # fmt: skip
    about = {
        "vary": {name: values}, "base": tuned, "seeds": chosen, "steps": steps, "rule": rule.choices,
        "data": _described(data), "setup": dataclasses.asdict(setup), "build": _identity(build),
        "planner": None if planner is None else _identity(planner), "loss": None if loss is None else _identity(loss),
    }  # fmt: skip
    if said:  # else the first line is as it was before there were readings, and old folders go on
        about["reading"] = said.to_dict()
    ledger = None if folder is None else Path(folder) / "runs.jsonl"
    same = about | {
        "vary": name,
        "seeds": None,
    }  # with other values and seeds it is the same check, extended
    runs = run_jobs(
        run_probe, jobs, ledger=ledger, about=same, engine=engine, report=report, remark=remark
    )
    return judge(list(runs.values()), quantity, about, criteria)


def judge(
    runs: Sequence[Run], quantity: Quantity, about: Mapping[str, Any], criteria: Criteria
) -> CheckResult:
    """The verdict on runs that are there already."""
    _refuse_equal(runs, quantity, next(iter(about["vary"])))
    found = findings(runs, quantity, criteria)
    return CheckResult(
        quantity=quantity,
        x=tuple(sorted({run[quantity] for run in runs})),
        about=about,
        criteria=criteria,
        findings=tuple(found),
        coherences=tuple(coherences(runs, quantity)),
        warnings=tuple(_warnings(runs, quantity)),
        unjudged=tuple(_unjudged(runs, found, quantity)),
        runs=tuple(runs),
    )


def _varied(vary: Mapping[str, Sequence[int]]) -> tuple[str, list[int], Quantity]:
    if len(vary) != 1:
        raise OptionError(
            f"vary names {len(vary)} quantities ({', '.join(vary) or 'none'}). Vary one at a time."
        )
    ((name, given),) = vary.items()
    if name not in QUANTITIES:
        raise UnknownNameError(
            "quantity to vary", name, ["n_kv_heads", "width", "depth"], aliases=QUANTITIES
        )
    values = list(given)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DimensionError(f"vary: {name}={value!r} is not a positive whole number.")
    if len(set(values)) < len(values):
        raise OptionError(f"vary: {name}={values} holds a value twice. Give each once.")
    if len(values) < 2:
        raise OptionError(
            f"vary: {name}={values} is one value, and a slope needs two. Three or more are better."
        )
    return name, values, QUANTITIES[name]


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    chosen = list(range(1, seeds + 1)) if isinstance(seeds, int) else list(seeds)
    if len(chosen) < 2:
        raise OptionError(
            f"seeds={seeds}: one seed gives no interval. Take at least 2; 3 to 10 are usual."
        )
    if len(set(chosen)) < len(chosen) or any(seed < 0 for seed in chosen):
        raise OptionError(f"seeds={chosen}: give each once, none below 0.")
    return chosen


def _said(build: Build, reading: Reading | None) -> Reading:
    """The reading that was given; of a model by name, else the one beside it."""
    if reading is not None:
        return reading
    return build.reading if isinstance(build, Family) else Reading()


def _base(name: str, values: Sequence[int]) -> int:
    """Of depth, 1: branches are then scaled by 1/L, and small at every depth that is looked at."""
    if QUANTITIES[name] == "depth":
        return 1
    counts_heads = QUANTITIES[name] == "r" and name not in ("r", "repetitions")
    return max(values) if counts_heads else min(values)


def _refuse_equal(runs: Sequence[Run], quantity: Quantity, name: str) -> None:
    """Values that do not change what they are meant to change."""
    found = {run["value"]: run[quantity] for run in runs}
    if len(set(found.values())) == 1:
        raise OptionError(
            f"build ignores {name}: {quantity} is {next(iter(found.values()))} at {name} = "
            f"{', '.join(map(str, found))}. Pass the argument on to the model's config."
        )
    for value, x in found.items():
        same = [other for other, also in found.items() if also == x and other != value]
        if same:
            raise OptionError(
                f"{name} = {value} and {same[0]} both give {quantity} = {x}. Leave one of them out."
            )


def _unjudged(runs: Sequence[Run], found: Sequence[Finding], quantity: Quantity) -> list[str]:
    """What should be judged and has no slope: a role that did not move, a map that was not seen."""
    parts, judged = (
        runs[0]["parts"],
        {one.role for one in found if one.judged and one.statistic in ("update", "map")},
    )
    roles = [
        role for role, kind in zip(parts["role"], parts["kind"], strict=True) if kind != "vector"
    ]
    return [
        name for name in dict.fromkeys(MAPS if quantity == "depth" else roles) if name not in judged
    ]


def _warnings(runs: Sequence[Run], quantity: Quantity) -> list[str]:
    found: list[str] = []
    for other in ("r", "width", "depth"):
        values = {run[other] for run in runs}
        if other != quantity and len(values) > 1:
            found.append(
                f"{other} changes along with {quantity} ({min(values)} to {max(values)}): a slope "
                "may come from either."
            )
    if any(run.get("tied") for run in runs):
        found.append(
            "the readout is the embedding, and is judged as such: its factor in the final norm is "
            "not."
        )
    first, last = (sum(run["losses"][k] for run in runs) / len(runs) for k in (0, -1))
    if last > first:
        found.append(
            f"the loss rose, {first:.3g} → {last:.3g} on average: the rate may be too large to "
            "judge by."
        )
    return found


def _described(data: str | Tokens | Making) -> str:
    if isinstance(data, str):
        return data
    if callable(data):
        return _identity(data)
    return f"array of {len(data)} tokens, {hashlib.sha256(data.tobytes()).hexdigest()[:12]}"


def _identity(function: Callable[..., Any]) -> str:
    """What tells one function from another, so that a folder is not continued with a different
    model.
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    if dataclasses.is_dataclass(function) and not isinstance(function, type):
        return repr(function)
    try:
        source = inspect.getsource(function)
    except Exception:  # no source, or one that was edited since
        return f"{getattr(function, '__module__', '')}.{name}"
    return f"{function.__module__}.{name}, {hashlib.sha256(source.encode()).hexdigest()[:12]}"

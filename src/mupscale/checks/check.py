"""`coordinate_check`: does a rule hold on this model? Slopes with intervals, and a verdict."""

import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mupscale.checks.judging import Criteria, Finding, coherences, findings
from mupscale.checks.probe import Build, Making, Probe, Setup, run_probe
from mupscale.checks.result import CheckResult
from mupscale.checks.statistics import MAPS, Quantity, Run
from mupscale.data.corpus import Tokens
from mupscale.engines import Engine, run_jobs
from mupscale.errors import DimensionError, OptionError, UnknownNameError, check_arguments
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
"""The quantity that an argument of this name varies."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """Where the runs of a check execute, where they are kept, and who is notified."""

    engine: Engine | None = None
    "Default: local processes, one per core."
    folder: Path | str | None = None
    "Keeps the runs as JSON lines. Runs found there are not repeated; you can add seeds and values."
    report: Callable[[int, int], None] = lambda done, total: None
    "Called with the number of finished runs and of all runs."
    remark: Callable[[str], None] = lambda text: None
    "Called with messages for the user."


def coordinate_check(
    build: Build,
    vary: Mapping[str, Sequence[int]],
    *,
    rule: str | Rule = "gqa-mup",
    reading: Reading | None = None,
    setup: Setup = Setup(),  # noqa: B008
    criteria: Criteria = Criteria(),  # noqa: B008
    running: Running = Running(),  # noqa: B008
    **options: Any,
) -> CheckResult:
    """Train a model for a few steps at each value and seed, and judge whether weights and updates
    keep their size.

    - `build`: a function of one argument that makes the model, such as `build(n_kv_heads=4)`.
    - `vary`: the argument and its values, `{"n_kv_heads": [12, 6, 4, 3, 2, 1]}`; or width or depth,
      by any name that configs use.
    - `rule`: the rule to check.
    - `reading`: roles, ignored keys and inputs that the model does not reveal by itself (default:
      the `mupscale.toml` beside the model of a `Family`).
    - `setup`: seeds, steps, data, loss, optimizer and base values.
    - `criteria`: tolerance and confidence of the verdict.
    - `running`: engine, folder and progress.
    - `options`: fields of `Setup` and `Running` by name, such as `seeds=3, steps=2, folder="runs"`.

    >>> from mupscale.engines import Local
    >>> from mupscale.models import GPT, GPTConfig
    >>> shape = dict(width=32, depth=1, n_heads=4, vocabulary=256, context=64)
    >>> def build(n_kv_heads):
    ...     return GPT(GPTConfig(n_kv_heads=n_kv_heads, **shape))
    >>> quick = Setup(batch=1, sequence=64, steps=1)
    >>> here = Local(workers=0)
    >>> result = coordinate_check(build, {"n_kv_heads": [4, 2, 1]}, setup=quick, engine=here)
    >>> result.quantity, result.x
    ('r', (1, 2, 4))
    """
    name, values, quantity = _varied(vary)
    setup, running = _with_options(setup, running, options)
    if setup.base is None:
        setup = dataclasses.replace(setup, base=_base(name, values))
    rule = rule_named(rule) if isinstance(rule, str) else rule
    if reading is None:
        reading = build.reading if isinstance(build, Family) else Reading()
    seeds = _seeds(setup.seeds)
    jobs = {
        f"{name}={value} seed={seed}": Probe(build, name, value, seed, rule, setup, reading)
        for value in values
        for seed in seeds
    }
    about = {
        "vary": {name: values},
        "base": setup.base,
        "seeds": seeds,
        "steps": setup.steps,
        "rule": rule.choices,
        "data": _described(setup.data),
        "setup": setup.values(),
        "build": _identity(build),
        "planner": None if setup.planner is None else _identity(setup.planner),
        "loss": None if setup.loss is None else _identity(setup.loss),
    }
    if reading:  # folders from before there were readings have no such key, and stay valid
        about["reading"] = reading.to_dict()
    runs = run_jobs(
        run_probe,
        jobs,
        ledger=None if running.folder is None else Path(running.folder) / "runs.jsonl",
        # Other values and seeds extend the same check.
        about=about | {"vary": name, "seeds": None},
        engine=running.engine,
        report=running.report,
        remark=running.remark,
    )
    return judge(list(runs.values()), quantity, about, criteria)


def _with_options(
    setup: Setup, running: Running, options: Mapping[str, Any]
) -> tuple[Setup, Running]:
    """Both with the fields that were given by name."""
    of_setup, of_running = (
        {field.name for field in dataclasses.fields(group)} for group in (setup, running)
    )
    check_arguments("coordinate_check", options, of_setup | of_running)
    return (
        dataclasses.replace(setup, **{k: v for k, v in options.items() if k in of_setup}),
        dataclasses.replace(running, **{k: v for k, v in options.items() if k in of_running}),
    )


def judge(
    runs: Sequence[Run], quantity: Quantity, about: Mapping[str, Any], criteria: Criteria
) -> CheckResult:
    """The verdict on finished runs."""
    _check_distinct(runs, quantity, next(iter(about["vary"])))
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
            raise DimensionError(f"vary: {name}={value!r} is not a positive integer.")
    if len(set(values)) < len(values):
        raise OptionError(f"vary: {name}={values} holds a value twice. Give each once.")
    if len(values) < 2:
        raise OptionError(f"vary: {name}={values} is one value. A slope needs at least two.")
    return name, values, QUANTITIES[name]


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    chosen = list(range(1, seeds + 1)) if isinstance(seeds, int) else list(seeds)
    if len(chosen) < 2:
        raise OptionError(
            f"seeds={seeds}: one seed gives no interval. Use at least 2; 3 to 10 are usual."
        )
    if len(set(chosen)) < len(chosen) or any(seed < 0 for seed in chosen):
        raise OptionError(f"seeds={chosen}: give each once, none below 0.")
    return chosen


def _base(name: str, values: Sequence[int]) -> int:
    if QUANTITIES[name] == "depth":
        return 1  # branches are then scaled by 1/L, and small at every depth in the check
    counts_heads = QUANTITIES[name] == "r" and name not in ("r", "repetitions")
    return max(values) if counts_heads else min(values)


def _check_distinct(runs: Sequence[Run], quantity: Quantity, name: str) -> None:
    """Every value must change the quantity that it is meant to change."""
    found = {run["value"]: run[quantity] for run in runs}
    if len(set(found.values())) == 1:
        raise OptionError(
            f"build ignores {name}: {quantity} is {next(iter(found.values()))} at {name} = "
            f"{', '.join(map(str, found))}. Pass the argument on to the model's config."
        )
    for value, x in found.items():
        equal = [other for other, also in found.items() if also == x and other != value]
        if equal:
            raise OptionError(
                f"{name} = {value} and {equal[0]} both give {quantity} = {x}. Remove one of them."
            )


def _unjudged(runs: Sequence[Run], found: Sequence[Finding], quantity: Quantity) -> list[str]:
    """Roles or maps that should be judged but have no slope."""
    parts = runs[0]["parts"]
    judged = {f.role for f in found if f.judged and f.statistic in ("update", "map")}
    kinds = zip(parts["role"], parts["kind"], strict=True)
    roles = [role for role, kind in kinds if kind != "vector"]
    wanted = MAPS if quantity == "depth" else roles
    return [name for name in dict.fromkeys(wanted) if name not in judged]


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
            "the readout is tied to the embedding and judged as the embedding; its factor in the "
            "final norm is not checked."
        )
    first, last = (sum(run["losses"][k] for run in runs) / len(runs) for k in (0, -1))
    if last > first:
        found.append(
            f"the mean loss rose, {first:.3g} → {last:.3g}: the learning rate may be too large for "
            "a valid check."
        )
    return found


def _described(data: str | Tokens | Making) -> str:
    if isinstance(data, str):
        return data
    if callable(data):
        return _identity(data)
    return f"array of {len(data)} tokens, {hashlib.sha256(data.tobytes()).hexdigest()[:12]}"


def _identity(function: Callable[..., Any]) -> str:
    """A text that identifies a function, so that a folder is not continued with another model."""
    name = getattr(function, "__qualname__", type(function).__name__)
    if dataclasses.is_dataclass(function) and not isinstance(function, type):
        return repr(function)
    try:
        source = inspect.getsource(function)
    except Exception:  # no source, or one that was edited since
        return f"{getattr(function, '__module__', '')}.{name}"
    return f"{function.__module__}.{name}, {hashlib.sha256(source.encode()).hexdigest()[:12]}"

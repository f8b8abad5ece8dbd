"""The runs of `gqa-mup` at width 64's best rate, trained with microsoft/mup applied by hand.

    pip install mup==1.0.0
    python results/width/microsoft-mup/train.py

Model, data, batches, schedule, seeds and rate are those of the study, and so are the random numbers
of the initialization. From mup come MuReadout, the base shapes, `mup.init.normal_` and MuAdamW. It
prints the losses beside ours. Kill it at any time and run it again: what is done stays done.

`mup` is the package as it is. It decays the gains of norms, which a plan does not: `mup, gains not
decayed` has a group without decay for them, and nothing else differs between the two.
"""

import math
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mup
import torch
from torch import Tensor, nn

from mupscale.analysis.fits import best_column
from mupscale.data import Batches, ValidationBatches, open_corpus
from mupscale.engines import Local, run_jobs
from mupscale.models import GPT, GPTConfig
from mupscale.planning.initialization import parameter_seed
from mupscale.studies import Study
from mupscale.text import text_table
from mupscale.training import RunConfig, lengths

HERE = Path(__file__).parent
RULE, BASE, WIDTHS, SEEDS = "gqa-mup", 64, (64, 256), (42, 43)
VARIANTS = ("mup", "mup, gains not decayed")


def best_rate() -> float:
    """Width 64's best rate: that with the lowest mean loss over the seeds."""
    trials = Study.open(HERE.parent / str(BASE)).trials
    rates, seeds = sorted({t.params["lr"] for t in trials}), sorted({t.seed for t in trials})
    losses = {(t.seed, t.params["lr"]): t.loss for t in trials}
    column = best_column([[losses[seed, rate] or math.nan for rate in rates] for seed in seeds])
    assert column is not None
    return rates[column]


def run_of(width: int, rate: float, seed: int) -> RunConfig:
    """The settings of our run."""
    config = Study.open(HERE.parent / str(width)).config
    (cell,) = (cell for cell in config.cells() if cell.rule_name == RULE)
    return config.run_config(cell, {"lr": rate}, seed)


def model_of(config: GPTConfig) -> GPT:
    """The reference model with mup's readout."""
    model = GPT(config)
    model.readout = mup.MuReadout(config.width, config.vocabulary, bias=False)
    return model


def prepared(run: RunConfig) -> GPT:
    """With base shapes, drawn by mup from the numbers that a plan would draw from."""
    base = run.base_model()
    model, delta = model_of(run.model), model_of(base.resized(width=2 * base.width))
    mup.set_base_shapes(model, model_of(base), delta=delta)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            torch.manual_seed(parameter_seed(run.seed, name))
            mup.init.normal_(parameter, std=run.optimizer.std)
    return model


def optimizer_of(model: nn.Module, run: RunConfig, variant: str) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    gains = [p for p in model.parameters() if p.ndim < 2]
    free = {} if variant == "mup" else {"weight_decay": 0.0}
    groups = [{"params": matrices}, {"params": gains} | free]
    chosen = run.optimizer
    return mup.MuAdamW(
        groups,
        lr=chosen.lr,
        weight_decay=chosen.weight_decay,
        betas=chosen.betas,
        eps=chosen.eps,
    )


def train(job: tuple[int, float, int, str]) -> dict[str, Any]:
    """One run; the loop of `mupscale.training` without what these runs do not use."""
    width, rate, seed, variant = job
    run, began = run_of(width, rate, seed), time.perf_counter()
    found, corpus = lengths(run), open_corpus(run.data.corpus)
    batches = Batches(corpus, batch=found.batch, sequence=run.data.sequence, seed=seed)
    model = prepared(run)
    optimizer = optimizer_of(model, run, variant)
    rates = [group["lr"] for group in optimizer.param_groups]
    loss = torch.tensor(math.nan)
    for step in range(found.steps):
        for group, own in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = own * found.schedule.at(step)
        batch = batches.at(step)
        loss: Tensor = model(batch.inputs, batch.targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    held_out = ValidationBatches(
        corpus, min(found.batch, 16), run.data.sequence, run.record.eval_batches
    )
    with torch.no_grad():
        validation = [model(batch.inputs, batch.targets).item() for batch in held_out]
    return {
        "width": width,
        "log2_lr": math.log2(rate),
        "seed": seed,
        "variant": variant,
        "loss": sum(validation) / len(validation),
        "train_loss": loss.item(),
        "seconds": round(time.perf_counter() - began, 1),
    }


def ours(width: int, rate: float, seed: int) -> float | None:
    """The loss of the study's own run; None while it is missing."""
    trials = Study.open(HERE.parent / str(width)).trials
    keys = {(t.rule, t.params["lr"], t.seed): t.loss for t in trials}
    return keys.get((RULE, rate, seed))


def main() -> None:
    rate = best_rate()
    jobs = {
        f"{variant}/width-{width}/seed-{seed}": (width, rate, seed, variant)
        for width in WIDTHS
        for seed in SEEDS
        for variant in VARIANTS
    }
    about = {"package": f"mup {version('mup')}", "log2_lr": math.log2(rate)}
    results = run_jobs(
        train,
        jobs,
        ledger=HERE / "losses.jsonl",
        about=about,
        engine=Local(workers=1),
        report=lambda done, total: print(f"{done} of {total} runs", flush=True),
    )
    rows: list[list[str]] = []
    for width in WIDTHS:
        for seed in SEEDS:
            mine = ours(width, rate, seed)
            theirs = [results[f"{one}/width-{width}/seed-{seed}"]["loss"] for one in VARIANTS]
            cells = [f"{one:.5f}" for one in theirs]
            cells += ["not run yet", "", ""] if mine is None else [
                f"{mine:.5f}", *(f"{one - mine:+.5f}" for one in theirs)
            ]  # fmt: skip
            rows.append([str(width), str(seed), *cells])
    head = ["width", "seed", *VARIANTS, RULE, "mup − ours", "gains not decayed − ours"]
    print(text_table(head, rows, right=head))


if __name__ == "__main__":
    main()

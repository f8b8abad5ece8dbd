"""`run`: one training run, from a config to a record. Kill it at any time and run it again."""

import json
import math
import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mupscale.data import Batches, Corpus, ValidationBatches, open_corpus
from mupscale.errors import InterruptedRunError, OptionError
from mupscale.planning import Plan
from mupscale.reading.structure import bare, bare_name
from mupscale.records import write_whole
from mupscale.training import checkpoints
from mupscale.training.config import RunConfig, changed_settings
from mupscale.training.metrics import Board, MetricsFile, read_lines
from mupscale.training.preparation import (
    Lengths,
    check_vocabulary,
    lengths,
    load_optimizer_state_,
    on_meta,
    optimizer_state,
    optimizers,
    plan_for,
)
from mupscale.training.processes import Processes, fill_, joined, shared, whole
from mupscale.training.schedule import Cosine

Status = Literal["finished", "diverged"]
Report = Callable[["RunProgress"], None]

DIVERGED_AT = 2.0
"""A loss this many times the first one is far above its start, and does not come back."""


@dataclass(frozen=True)
class RunProgress:
    """Where a run stands."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float


@dataclass(frozen=True)
class RunRecord:
    """What came out of a run. Losses are None where they are not finite."""

    status: Status
    step: int
    steps: int
    tokens: int
    train_loss: float | None
    validation_loss: float | None
    diverged_at: int | None
    data: dict[str, str | int]
    config: dict[str, Any] = field(repr=False)


def run(
    config: RunConfig,
    folder: Path | str,
    *,
    report: Report | None = None,
    remark: Callable[[str], None] | None = None,
    preparing: Callable[[int], None] | None = None,
) -> RunRecord:
    """Train, or go on where a run of the same config in this folder stopped; a finished one is read
    back.

    `report` hears of progress, `remark` of what a reader should know (a resume, a checkpoint that
    was set aside), and `preparing` of documents as they are made into tokens, where a corpus has to
    be prepared.
    """
    folder = Path(folder)
    finished = _finished(folder, config)
    if finished is not None:
        return finished
    corpus = open_corpus(
        config.data.corpus, tokenizer=config.data.tokenizer, report=preparing or (lambda _: None)
    )
    check_vocabulary(config, corpus)
    with joined(config.machine) as processes, _stoppable() as stop:
        training = _Training(config, folder, corpus, processes, stop, remark or (lambda _: None))
        return training.run(report or (lambda _: None))


def _finished(folder: Path, config: RunConfig) -> RunRecord | None:
    """The record of a run that is done. A folder that holds a run of another config is refused."""
    settled = folder / "config.toml"
    if settled.exists() and _has_begun(folder):
        changed = changed_settings(RunConfig.load(settled, {}), config)
        if changed:
            raise OptionError(
                f"{folder} holds a run of another config ({'; '.join(changed)}). Choose another "
                "folder, or the "
                "settings that it was begun with."
            )
    path = folder / "record.json"
    return RunRecord(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def _has_begun(folder: Path) -> bool:
    """Whether there is anything that another config would spoil."""
    return any((folder / name).exists() for name in ("metrics.jsonl", "checkpoint", "record.json"))


@contextmanager
def _stoppable() -> Generator[Callable[[], int]]:
    """Ctrl-C and SIGTERM wait for the step to end; the function yielded says which has come, or
    0.
    """
    received: list[int] = []
    try:
        before = {
            number: signal.signal(number, lambda number, _: received.append(number))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
    except ValueError:  # not the main thread, where signals cannot be caught
        before = {}
    try:
        yield lambda: received[0] if received else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Training:
    """A run in progress."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        corpus: Corpus,
        processes: Processes,
        stop: Callable[[], int],
        remark: Callable[[str], None],
    ) -> None:
        self.config, self.folder, self.corpus = config, folder, corpus
        self.processes, self.stop, self.remark = processes, stop, remark
        self.lengths: Lengths = lengths(config)
        sequence = config.data.sequence
        self.batches = Batches(
            self.corpus, batch=self.lengths.batch, sequence=sequence, seed=config.seed
        )
        rows = min(self.lengths.batch, 16)
        self.validation = ValidationBatches(self.corpus, rows, sequence, config.record.eval_batches)
        self.plan: Plan = plan_for(config)
        self._settle()
        model = shared(on_meta(config.model), config.machine, processes)
        self.plan.initialize_(model, std=config.optimizer.std, seed=config.seed)
        self.model: nn.Module = model
        self.forward: Callable[..., Tensor] = (
            torch.compile(model) if config.machine.compile else model
        )
        self.optimizers: list[Optimizer] = optimizers(self.plan, model, config.optimizer)
        self.schedule = Cosine(self.lengths.steps, self.lengths.warmup, config.length.floor)
        self.step, self.first_loss = 0, math.nan
        self._resume()

    def _settle(self) -> None:
        """Write down what is being run, before anything is."""
        if self.processes.first and not _has_begun(self.folder):
            write_whole(self.folder / "plan.json", self.plan.to_json().encode())
            write_whole(self.folder / "config.toml", self.config.to_toml().encode())
        self.processes.wait()

    def _resume(self) -> None:
        checkpoint, remarks = checkpoints.load_latest(self.folder / "checkpoint")
        for text in remarks:
            self.remark(text)
        if checkpoint is None:
            return
        for name, tensor in _named(self.model):
            fill_(tensor, checkpoint.tensors[f"model/{name}"])
        load_optimizer_state_(self.optimizers, checkpoint.tensors)
        self.step, self.first_loss = checkpoint.step, checkpoint.values["first_loss"]
        self.remark(f"going on after step {self.step}")

    def run(self, report: Report) -> RunRecord:
        board = Board(self.folder / "tensorboard", self.step) if self._wants_board() else None
        metrics = (
            MetricsFile(self.folder / "metrics.jsonl", self.step) if self.processes.first else None
        )
        try:
            for row in self._rows(report):
                if metrics is not None and (
                    self._is_due(self.config.record.log_every) or len(row) > 2
                ):
                    metrics.append(row)
                if board is not None:
                    board.add(row)
                stopped = self.processes.agreed(self.stop())
                done = self.step == self.lengths.steps and not row.get("diverged")
                if self._is_due(self.config.record.checkpoint_every) or stopped or done:
                    self._save(metrics)
                if stopped and self.step < self.lengths.steps:
                    raise InterruptedRunError(stopped, self.step, str(self.folder))
            return self._record(metrics)
        finally:
            for file in (metrics, board):
                if file is not None:
                    file.close()

    def _wants_board(self) -> bool:
        return self.processes.first and self.config.record.tensorboard

    def _rows(self, report: Report) -> Iterator[dict[str, Any]]:
        """A row of metrics for each step, the loss of the diverging one included."""
        while self.step < self.lengths.steps:
            began = time.perf_counter()
            loss = self._train_step()
            if self.step == 0:
                self.first_loss = loss
            self.step += 1
            row: dict[str, Any] = {"step": self.step, "loss": _finite(loss)}
            diverged = not math.isfinite(loss) or loss > DIVERGED_AT * self.first_loss
            if diverged:
                yield row | {"diverged": True}
                return
            if self._is_due(self.config.record.eval_every) or self.step == self.lengths.steps:
                row["validation_loss"] = _finite(self._evaluate())
            tokens = self.lengths.batch * self.config.data.sequence
            report(
                RunProgress(
                    self.step, self.lengths.steps, loss, tokens / (time.perf_counter() - began)
                )
            )
            yield row

    def _is_due(self, every: int | None) -> bool:
        return every is not None and self.step % every == 0

    def _train_step(self) -> float:
        micros = self.config.length.accumulate
        factor = self.schedule.at(self.step)
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            group["lr"] = group["initial_lr"] * factor
        total = torch.zeros((), device=self.processes.device)
        for micro in range(micros):
            loss = self._loss(micro, micros) / micros
            loss.backward()
            total += loss.detach()
        if self.config.optimizer.clip is not None:
            self.plan.clip_grad_norm_(self.model, self.config.optimizer.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return self.processes.mean(total).item()

    def _loss(self, micro: int, micros: int) -> Tensor:
        rank, ranks = self.processes.rank, self.processes.ranks
        batch = self.batches.at(self.step, rank=rank, ranks=ranks, micro=micro, micros=micros)
        return self._forward(batch.inputs, batch.targets)

    def _forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        device = self.processes.device
        with self._precision():
            return self.forward(
                inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
            )

    def _precision(self) -> Any:
        if self.config.machine.precision == "float32":
            return nullcontext()
        return torch.autocast(self.processes.device.type, dtype=torch.bfloat16)

    @torch.no_grad()
    def _evaluate(self) -> float:
        """The mean over the fixed windows; every rank does all of them, so that the number is the
        same.

        No more at once than a rank trains on at once: memory was made to hold that.
        """
        rows = max(1, self.lengths.batch // (self.config.length.accumulate * self.processes.ranks))
        total = torch.zeros((), dtype=torch.float64, device=self.processes.device)
        for batch in self.validation:
            parts = zip(batch.inputs.split(rows), batch.targets.split(rows), strict=True)
            total += sum(
                self._forward(*part).double() * (len(part[0]) / len(batch.inputs)) for part in parts
            )
        return (total / len(self.validation)).item()

    def _save(self, metrics: MetricsFile | None) -> None:
        tensors = {f"model/{name}": whole(tensor) for name, tensor in _named(self.model)}
        tensors |= optimizer_state(self.optimizers)
        if metrics is not None:
            metrics.sync()
            values = {"first_loss": self.first_loss}
            checkpoints.save(
                self.folder / "checkpoint", checkpoints.Checkpoint(self.step, tensors, values)
            )
        self.processes.wait()

    def _record(self, metrics: MetricsFile | None) -> RunRecord:
        if metrics is not None:
            metrics.sync()
        self.processes.wait()
        rows, _ = read_lines(self.folder / "metrics.jsonl")
        last = rows[-1]
        diverged = bool(last.get("diverged"))
        record = RunRecord(
            status="diverged" if diverged else "finished",
            step=last["step"],
            steps=self.lengths.steps,
            tokens=last["step"] * self.lengths.batch * self.config.data.sequence,
            train_loss=last["loss"],
            validation_loss=last.get("validation_loss"),
            diverged_at=last["step"] if diverged else None,
            data=self.corpus.describe(),
            config=self.config.to_dict(),
        )
        if self.processes.first:
            write_whole(
                self.folder / "record.json", (json.dumps(asdict(record), indent=1) + "\n").encode()
            )
        return record


def _named(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [(bare_name(name), tensor) for name, tensor in bare(model).named_parameters()]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

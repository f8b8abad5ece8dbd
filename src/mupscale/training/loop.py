"""`run`: one training run, from a config to a record. It can be killed at any time and resumed."""

import json
import math
import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mupscale.data import Batches, Corpus, ValidationBatches, open_corpus
from mupscale.errors import DimensionError, InterruptedRunError, OptionError
from mupscale.planning import Plan
from mupscale.reading.structure import bare, bare_name
from mupscale.records import finite, write_whole
from mupscale.training import checkpoints
from mupscale.training.config import RunConfig, changed_settings
from mupscale.training.metrics import Board, MetricsFile, read_lines
from mupscale.training.noise import NoiseScale, noise_parts
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

Status = Literal["finished", "diverged"]
Report = Callable[["RunProgress"], None]

DIVERGED_AT = 2.0
"""A loss this many times the first one counts as diverged: such runs do not recover."""


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run, for a progress bar."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float


@dataclass(frozen=True)
class RunRecord:
    """The result of a run. A loss that is not finite is None."""

    status: Status
    step: int
    steps: int
    tokens: int
    train_loss: float | None
    validation_loss: float | None
    diverged_at: int | None
    data: dict[str, str | int]
    config: dict[str, Any] = field(repr=False)
    noise_scale_tokens: float | None = None
    "The last gradient noise scale, if it was measured."


def run(
    config: RunConfig,
    folder: Path | str,
    *,
    report: Report | None = None,
    remark: Callable[[str], None] | None = None,
    preparing: Callable[[int], None] | None = None,
) -> RunRecord:
    """Train, or resume a run of the same config in this folder; a finished run is read back.

    `report` is called with the progress, `remark` with messages for the user (a resume, a damaged
    checkpoint), and `preparing` with the number of documents just tokenized.
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
    """The record of a finished run. A folder with a run of another config raises an error."""
    saved = folder / "config.toml"
    if saved.exists() and _has_begun(folder):
        changed = changed_settings(RunConfig.load(saved, {}), config)
        if changed:
            raise OptionError(
                f"{folder} holds a run of another config ({'; '.join(changed)}). Choose another "
                "folder, or the original settings."
            )
    path = folder / "record.json"
    return RunRecord(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def _has_begun(folder: Path) -> bool:
    """Whether the folder holds results, which another config must not overwrite."""
    return any((folder / name).exists() for name in ("metrics.jsonl", "checkpoint", "record.json"))


@contextmanager
def _stoppable() -> Generator[Callable[[], int]]:
    """Let the current step finish after Ctrl-C or SIGTERM. Yields a function that returns the
    signal received, or 0.
    """
    received: list[int] = []
    try:
        before = {
            number: signal.signal(number, lambda number, _: received.append(number))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
    except ValueError:  # signals can only be caught in the main thread
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
        batch, sequence = self.lengths.batch, config.data.sequence
        self.batches = Batches(corpus, batch=batch, sequence=sequence, seed=config.seed)
        self.validation = ValidationBatches(
            corpus, min(batch, 16), sequence, config.record.eval_batches
        )
        self.plan: Plan = plan_for(config)
        self._write_config()
        model = shared(on_meta(config.model), config.machine, processes)
        self.plan.initialize_(model, std=config.optimizer.std, seed=config.seed)
        self.model: nn.Module = model
        self.forward: Callable[..., Tensor] = (
            torch.compile(model) if config.machine.compile else model
        )
        self.optimizers: list[Optimizer] = optimizers(self.plan, model, config.optimizer)
        self.step, self.first_loss = 0, math.nan
        self.noise = NoiseScale()
        self._check_halves()
        self._resume()

    def _check_halves(self) -> None:
        """A noise scale needs the gradient of a part of the batch."""
        batch, ranks = self.lengths.batch, self.processes.ranks
        whole = self.config.record.noise_every is None or self.config.length.accumulate > 1
        if not whole and batch % (2 * ranks):
            each = f" on each of {ranks} ranks" if ranks > 1 else ""
            raise DimensionError(
                f"record.noise_every splits a batch into halves{each}, but length.batch = {batch}. "
                f"Choose a multiple of {2 * ranks}."
            )

    def _write_config(self) -> None:
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
        if "noise" in checkpoint.values:
            self.noise.load_(checkpoint.values["noise"])
        self.remark(f"resuming after step {self.step}")

    def run(self, report: Report) -> RunRecord:
        metrics = board = None
        if self.processes.first:
            if self.config.record.tensorboard:  # first, because TensorBoard may not be installed
                board = Board(self.folder / "tensorboard", self.step)
            metrics = MetricsFile(self.folder / "metrics.jsonl", self.step)
        try:
            for row in self._rows(report):
                due = self._is_due(self.config.record.log_every) or len(row) > 2
                if metrics is not None and due:
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

    def _rows(self, report: Report) -> Iterator[dict[str, Any]]:
        """One row of metrics per step, including the step that diverges."""
        while self.step < self.lengths.steps:
            began = time.perf_counter()
            loss = self._train_step()
            if self.step == 0:
                self.first_loss = loss
            self.step += 1
            row: dict[str, Any] = {"step": self.step, "loss": finite(loss)}
            if not math.isfinite(loss) or loss > DIVERGED_AT * self.first_loss:
                yield row | {"diverged": True}
                return
            if self._is_due(self.config.record.eval_every) or self.step == self.lengths.steps:
                row["validation_loss"] = finite(self._evaluate())
            if self._is_due(self.config.record.noise_every):
                row["noise_scale_tokens"] = self.noise.tokens
            tokens = self.lengths.batch * self.config.data.sequence
            speed = tokens / (time.perf_counter() - began)
            report(RunProgress(self.step, self.lengths.steps, loss, speed))
            yield row

    def _is_due(self, every: int | None) -> bool:
        return every is not None and self.step % every == 0

    def _train_step(self) -> float:
        micros, every = self.config.length.accumulate, self.config.record.noise_every
        measured = every is not None and (self.step + 1) % every == 0
        if measured:  # two halves have the same mean gradient as their batch, up to rounding
            micros = max(2, micros)
        factor = self.lengths.schedule.at(self.step)
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            group["lr"] = group["initial_lr"] * factor
        rank, ranks = self.processes.rank, self.processes.ranks
        part = math.nan
        total = torch.zeros((), device=self.processes.device)
        for micro in range(micros):
            batch = self.batches.at(self.step, rank=rank, ranks=ranks, micro=micro, micros=micros)
            loss = self._loss(batch.inputs, batch.targets) / micros
            loss.backward()
            total += loss.detach()
            if measured and micro + 1 == micros // 2:
                part = self._squared_norm()
        if measured:
            self._add_noise(micros // 2 / micros, part, self._squared_norm())
        if self.config.optimizer.clip is not None:
            self.plan.clip_grad_norm_(self.model, self.config.optimizer.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return self.processes.mean(total).item()

    def _squared_norm(self) -> float:
        """Of the gradients so far. Ranks have averaged or sharded them, so this is global."""
        return self.plan.grad_norm(self.model).item() ** 2

    def _add_noise(self, share: float, part: float, whole: float) -> None:
        """`part` is the squared norm after `share` of a batch, of a gradient that counts to the
        mean over the whole batch.
        """
        tokens = self.lengths.batch * self.config.data.sequence
        self.noise.add(noise_parts(share * tokens, tokens, part / share**2, whole))

    def _loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        device = self.processes.device
        in_bf16 = self.config.machine.precision == "bf16"
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=in_bf16):
            return self.forward(
                inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
            )

    @torch.no_grad()
    def _evaluate(self) -> float:
        """The mean over the fixed windows. All ranks compute all of them, for the same number.

        A forward pass takes no more rows than a training step, whose memory is known to suffice.
        """
        rows = max(1, self.lengths.batch // (self.config.length.accumulate * self.processes.ranks))
        total = torch.zeros((), dtype=torch.float64, device=self.processes.device)
        for batch in self.validation:
            parts = zip(batch.inputs.split(rows), batch.targets.split(rows), strict=True)
            total += sum(self._loss(*p).double() * (len(p[0]) / len(batch.inputs)) for p in parts)
        return (total / len(self.validation)).item()

    def _save(self, metrics: MetricsFile | None) -> None:
        tensors = {f"model/{name}": whole(tensor) for name, tensor in _named(self.model)}
        tensors |= optimizer_state(self.optimizers)
        if metrics is not None:
            metrics.sync()
            values: dict[str, Any] = {"first_loss": self.first_loss}
            if self.config.record.noise_every is not None:
                values["noise"] = self.noise.state()
            state = checkpoints.Checkpoint(self.step, tensors, values)
            checkpoints.save(self.folder / "checkpoint", state)
        self.processes.wait()

    def _record(self, metrics: MetricsFile | None) -> RunRecord:
        if metrics is not None:
            metrics.sync()
        self.processes.wait()
        rows, _ = read_lines(self.folder / "metrics.jsonl")
        last = rows[-1]
        diverged = bool(last.get("diverged"))
        measured = (row.get("noise_scale_tokens") for row in reversed(rows))
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
            noise_scale_tokens=next(filter(None, measured), None),
        )
        if self.processes.first:
            values = asdict(record)
            if record.noise_scale_tokens is None:  # left out, as in records without it
                del values["noise_scale_tokens"]
            text = json.dumps(values, indent=1) + "\n"
            write_whole(self.folder / "record.json", text.encode())
        return record


def _named(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [(bare_name(name), tensor) for name, tensor in bare(model).named_parameters()]

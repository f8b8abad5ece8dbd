"""Checkpoints: safetensors, and a manifest with their hash that is written last. No pickles.

The last two are kept. A damaged one is set aside, and the one before it is used.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from mupscale.errors import StorageError
from mupscale.records import write_whole

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """The state after `step` steps."""

    step: int
    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the tensors, then the manifest, then delete all but the last two checkpoints."""
    content = safetensors.torch.save(dict(checkpoint.tensors))
    name = f"step-{checkpoint.step:09d}"
    manifest = {
        "step": checkpoint.step,
        "file": f"{name}.safetensors",
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "values": checkpoint.values,
    }
    write_whole(folder / f"{name}.safetensors", content)
    text = json.dumps(manifest, indent=1, allow_nan=False) + "\n"
    write_whole(folder / f"{name}.json", text.encode())
    for old in _manifests(folder)[KEPT:]:
        old.unlink(missing_ok=True)
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def load_latest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest intact checkpoint, or None if there never was one; and a remark for each damaged
    one that was set aside.
    """
    remarks: list[str] = []
    for manifest in _manifests(folder):
        problem, checkpoint = _read(manifest)
        if checkpoint is not None:
            return checkpoint, remarks
        remarks.append(f"{manifest.name}: {problem}; set aside as {_set_aside(manifest)}")
    if remarks:
        raise StorageError(
            f"all checkpoints in {folder} are damaged: {'; '.join(remarks)}. Restore one from a "
            "copy, or remove the folder to start over."
        )
    return None, remarks


def _manifests(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.json"), reverse=True) if folder.is_dir() else []


def _read(manifest: Path) -> tuple[str, Checkpoint | None]:
    try:
        described = json.loads(manifest.read_bytes())
        content = manifest.with_suffix(".safetensors").read_bytes()
    except (OSError, ValueError) as error:
        return f"could not be read ({error})", None
    expected = described["size"], described["sha256"]
    if (len(content), hashlib.sha256(content).hexdigest()) != expected:
        return "its tensors changed since they were written", None
    return "", Checkpoint(described["step"], safetensors.torch.load(content), described["values"])


def _set_aside(manifest: Path) -> str:
    aside = manifest.with_suffix(".corrupt")
    os.replace(manifest, aside)
    tensors = manifest.with_suffix(".safetensors")
    if tensors.exists():
        os.replace(tensors, tensors.with_suffix(".safetensors.corrupt"))
    return aside.name

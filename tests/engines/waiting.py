"""Waiting for what other processes do."""

import time
from pathlib import Path

import pytest


def wait_for(condition, seconds: float = 20.0):
    """What the condition gives, once it is true; a busy machine takes its time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    pytest.fail("it did not happen in time")


def is_gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True

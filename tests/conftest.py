"""Settings for all tests, applied before torch is imported."""

import gc
import os
import shutil
import signal

import pytest
from hypothesis import settings

# Some virtual machines announce Intel's AMX but do not support it, which kills the process in
# bfloat16 matrix products (Muon's).
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# What is printed does not depend on the terminal that the tests run in.
os.environ["COLUMNS"] = "100"

# No deadline, because a machine may be busy. Derandomized, so that a failure can be reproduced.
settings.register_profile("mupscale", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("mupscale")

# A shell that starts the tests in the background makes them and their children ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def pytest_collection_finish(session):
    """Leave what torch and transformers made at import out of every later garbage collection.

    They are millions of objects that live until the end: to visit them again and again took up to
    a fifth of a test's time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def browser():
    """Chromium, which `make browser` installs."""
    if CHROMIUM is None:
        pytest.fail("Chromium is not installed. Install it with: make browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM)
        yield opened
        opened.close()

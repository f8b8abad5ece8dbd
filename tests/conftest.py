"""Settings for every test, made before torch is imported."""

import os
import signal

from hypothesis import settings

# Some virtual machines announce Intel's AMX and trap on it, which kills the process in bfloat16 products (Muon's).
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# A busy machine must not fail a test; an interesting case found once is found again.
settings.register_profile("mupscale", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("mupscale")

# A shell that starts the tests in the background has them ignore Ctrl-C, and their children with them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Run every study of this folder, in order. It can be killed and run again; what is done stays done.
set -eu
cd "$(dirname "$0")/../.."
for name in today-64 proposed-64 std readout embedding attention; do
    mupscale sweep results/start-values/$name/study.toml --output runs/start-values/$name
done
for name in today proposed; do
    best=$(python - "runs/start-values/$name-64" <<'END'
import math, sys
from collections import defaultdict
from pathlib import Path
from mupscale.studies import Study
losses = defaultdict(list)
for trial in Study.open(Path(sys.argv[1])).trials:
    losses[round(trial.log2_lr, 6)].append(math.inf if trial.loss is None else trial.loss)
print(min(losses, key=lambda rate: sum(losses[rate])))
END
)
    mupscale sweep results/start-values/$name-256/study.toml --lr "2^$best,2^$(python -c "print($best + 0.25)")" \
        --output runs/start-values/$name-256
done

#!/bin/sh
# Every run of the width study, the smallest width first, one run at a time. Kill it at any time and
# start it again: what is done stays done. Start it in the root of a clone that has runs/gcide.txt.
set -eu
export OMP_NUM_THREADS=1
mupscale=${MUPSCALE:-mupscale}

for width in 64 128 256 512; do
  $mupscale sweep results/width/$width/study.toml --output runs/width/$width --workers 1
done

# Width 64's best rate: the rate of the grid with the lowest mean loss over the seeds.
best=$(${PYTHON:-python3} - <<'PYTHON'
import collections, json, math, statistics

losses = collections.defaultdict(list)
for line in list(open("runs/width/64/records.jsonl"))[1:]:
    trial = json.loads(line)["result"]
    losses[trial["params"]["lr"]].append(math.inf if trial["loss"] is None else trial["loss"])
print(math.log2(min(losses, key=lambda rate: statistics.mean(losses[rate]))))
PYTHON
)
above=$(${PYTHON:-python3} -c "print($best + 0.25)")
$mupscale sweep results/width/512-at-64/study.toml --lr "2^$best,2^$above" \
  --output runs/width/512-at-64 --workers 1

#!/bin/sh
# Every run of the width study, the smallest width first, one run at a time. Kill it at any time and
# start it again: what is done stays done. Start it in the root of a clone that has runs/gcide.txt.
set -eu
export OMP_NUM_THREADS=1
exec ${MUPSCALE:-mupscale} paper width --output runs/width --workers 1

#!/bin/bash
# Train on a TPU v5e-256 of a GKE cluster, through xpk (pip install xpk):
#
#     CLUSTER=... PROJECT=... ZONE=... IMAGE=... WORKDIR=... bash examples/cluster/xpk.sh [arguments]
#
# IMAGE has jaxssl[tpu,gcs]. WORKDIR is a bucket, as gs://BUCKET/RUN. The arguments are those of
# jaxssl train, and name the prepared ImageNet: --config.data.dir=gs://BUCKET/DATA. First:
#
#     jaxssl train --config imagenet_baselines:simclr --dry_run --topology v5e-256
set -euo pipefail

command=(jaxssl train --config imagenet_baselines:simclr --workdir "${WORKDIR:?}" "$@")
xpk workload create \
  --cluster "${CLUSTER:?}" --project "${PROJECT:?}" --zone "${ZONE:?}" \
  --workload "${NAME:-simclr}" \
  --tpu-type "${TPU:-v5litepod-256}" --num-slices 1 \
  --docker-image "${IMAGE:?}" \
  --max-restarts 10 \
  --termination-grace-period-seconds 120 \
  --command "${command[*]@Q}"

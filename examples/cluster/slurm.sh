#!/bin/bash
# Train on 2 nodes of 8 GPUs, with one process for each GPU:
#
#     WORKDIR=/shared/runs/simclr sbatch examples/cluster/slurm.sh --config.data.dir=/shared/data
#
# The arguments are those of jaxssl train; data.dir has the prepared ImageNet. Both folders are on a
# file system that all nodes share. Every task must see all GPUs of its node
# (--gpus-per-node, not --gpus-per-task), because JAX gives each task the GPU of its local number.
#SBATCH --job-name=jaxssl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@120
#SBATCH --open-mode=append

set -u
srun --kill-on-bad-exit=1 jaxssl train --config imagenet_baselines:simclr \
  --workdir "${WORKDIR:?set WORKDIR to a folder that all nodes share}" --retry 3 "$@"
status=$?
# 143: the signal came 120 s before the end of the time, and a checkpoint was saved.
if [ "$status" -eq 143 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"

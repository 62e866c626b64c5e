#!/bin/bash
# SPDX-License-Identifier: MIT
# One node under Slurm: sbatch one-node.sh my.yaml RUN_FOLDER
# Set ranks and cores for your nodes; ranks x cores should be the cores of a node. The run folder must be on a file
# system that lasts, or the requeued job cannot find its checkpoint.
#SBATCH --job-name=titan
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --output=titan-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
# Five minutes before the time limit the ranks stop after a step and save.
#SBATCH --signal=USR1@300
set -u
config=${1:?usage: sbatch one-node.sh CONFIG.yaml RUN_FOLDER}
run=${2:?usage: sbatch one-node.sh CONFIG.yaml RUN_FOLDER}

code=0
titan launch -n "$SLURM_NTASKS" -- train --config "$config" --job.dump_folder "$run" || code=$?

# 75: stopped and saved, not finished. The same command resumes it, so the job goes back into the queue.
if [ $code = 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code

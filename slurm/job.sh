# Sourced by the templates: settings, running dcr so that a signal reaches it, and what a stopped job does.
# shellcheck shell=bash

DCR_ENV=${DCR_ENV:-slurm/site.env}
if [ -f "$DCR_ENV" ]; then
    # shellcheck source=slurm/site.env
    . "$DCR_ENV"
fi
DCR_CONFIG=${DCR_CONFIG:-dcr.yaml}
DCR_WAIT_S=${DCR_WAIT_S:-600}
DCR_RESTARTS=${DCR_RESTARTS:-100}
DCR_RECEIPTS=${DCR_RECEIPTS:-receipts}
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1} PYTHONUNBUFFERED=1
export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring} # by the tree, some ranks may not wait for the others in MPI_Init

read -r -a launch <<<"${DCR_LAUNCH:-srun --mpi=pmix}"
if [ "${launch[0]}" = srun ]; then # since Slurm 22.05 a step does not take over the job's CPUs per task
    launch=(srun --kill-on-bad-exit=1 "--cpus-per-task=${SLURM_CPUS_PER_TASK:-1}" "${launch[@]:1}")
fi

child=''
stopped=''
asked=''

# Only this shell gets the signal (--signal=B:...); every launcher passes USR1 on to its ranks.
stop() {
    stopped=1
    asked=1
    [ -z "$child" ] || kill -USR1 "$child" 2>/dev/null || true
}
trap stop USR1
terminate() {
    asked=1
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true
}
trap terminate TERM

run() { # run PROGRAM ARGUMENT...: its exit code, whatever signals come meanwhile
    if [ -n "$stopped" ]; then
        return 75
    fi
    local code=0
    "$@" &
    child=$!
    wait "$child" || true
    while kill -0 "$child" 2>/dev/null; do # a signal ends the wait, not the program
        wait "$child" || true
    done
    wait "$child" || code=$?
    child=''
    if [ -n "$stopped" ] && [ "$code" != 0 ]; then
        code=75 # stopped before it could say so itself, or ended along with a rank that was
    fi
    return "$code"
}

ranks() { # dcr on all tasks of the job
    run "${launch[@]}" dcr "$1" --config "$DCR_CONFIG" "${@:2}"
}

alone() { # dcr on this node, one process
    run dcr "$1" --config "$DCR_CONFIG" "${@:2}"
}

receipt() { # the option that has a receipt written under a name
    mkdir -p "$DCR_RECEIPTS"
    echo "--receipt=$DCR_RECEIPTS/$1.json"
}

# A job that was told to stop goes back into the queue; not one in which a rank failed and the launcher stopped the others,
# which then say 75 as well. One that was cancelled, or that Slurm requeues by itself, is not
# RUNNING any more when its steps end, and is left alone.
finish() {
    local code=$?
    if [ "$code" = 75 ] && [ -n "$asked" ] && [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then
        if [ "${SLURM_RESTART_COUNT:-0}" -lt "$DCR_RESTARTS" ]; then
            echo "stopped by a signal: requeueing job $SLURM_JOB_ID, restarted ${SLURM_RESTART_COUNT:-0} times so far"
            scontrol requeue "$SLURM_JOB_ID" || true
        else
            echo "stopped by a signal, after $DCR_RESTARTS restarts: submit it again (DCR_RESTARTS allows more)" >&2
        fi
    fi
    exit "$code"
}
trap finish EXIT

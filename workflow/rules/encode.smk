# At the trainer: what changed since the version before, sealed in the store. The checkpoint is data, never an output.


rule encode:
    input:
        earlier("committed"),
        trained,
    output:
        receipt("encoded"),
    log:
        logfile("{version}/encode"),
    benchmark:
        benchmarked("{version}/encode")
    retries: 2
    threads: cores("trainer")
    resources:
        **asks("trainer"),
        mpi="mpirun",
    params:
        dcr=on_ranks,
        options=options,
        needs=needs,
        checkpoint=lambda wildcards: checkpoint_of(int(wildcards.version)),
    shell:
        "{params.dcr} encode {params.checkpoint:q} {params.options} {params.needs}"
        " --receipt {output:q} >{log:q} 2>&1"

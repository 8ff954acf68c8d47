# The start: training's own work, version 0, and the sites' replicas of it.


rule train:
    input:
        trained_before,
    output:
        touch(f"{OUT}/receipts/{{version}}/trained"),
    log:
        logfile("{version}/train"),
    benchmark:
        benchmarked("{version}/train")
    threads: cores("trainer")
    resources:
        **{**asks("trainer"), "nodes": 1, "tasks": 1},
    params:
        command=config["train"],
        step=lambda wildcards: step(int(wildcards.version)),
        checkpoint=lambda wildcards: checkpoint_of(int(wildcards.version)),
    shell:
        "DCR_STEP={params.step} DCR_CHECKPOINT={params.checkpoint:q} bash -c {params.command:q} >{log:q} 2>&1"


rule policy:
    input:
        trained,
    output:
        receipt("policy", 0),
    log:
        logfile("000000/policy"),
    benchmark:
        benchmarked("000000/policy")
    retries: 2
    threads: cores("trainer")
    resources:
        **asks("trainer"),
        mpi="mpirun",
    params:
        dcr=on_ranks,
        options=options,
        needs=needs,
        checkpoint=checkpoint_of(0),
    shell:
        "{params.dcr} init {params.options} {params.needs} --checkpoint {params.checkpoint:q}"
        " --receipt {output:q} >{log:q} 2>&1"


rule replica:
    input:
        [ancient(receipt("policy", 0))] * TRAINER,
    output:
        receipt("{site}.created", 0),
    log:
        logfile("000000/{site}.create"),
    benchmark:
        benchmarked("000000/{site}.create")
    retries: 2
    threads: cores("site")
    resources:
        **asks("site"),
        mpi="mpirun",
    params:
        dcr=on_ranks,
        options=options,
        needs=needs,
    shell:
        "{params.dcr} init {params.options} {params.needs}" " --receipt {output:q} >{log:q} 2>&1"


rule replicas:
    input:
        expand(receipt("{site}.created", 0), site=SITES),

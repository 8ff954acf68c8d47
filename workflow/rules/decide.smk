# One decision for everybody. It runs where Snakemake does: all it needs is the store.


rule decide:
    input:
        sealed,
        prepared,
    output:
        receipt("committed"),
    log:
        logfile("{version}/decide"),
    benchmark:
        benchmarked("{version}/decide")
    retries: 2
    params:
        dcr=DCR,
        options=options,
        needs=needs,
        wait=config["wait_s"],
    shell:
        "{params.dcr} commit {params.options} {params.needs} --wait {params.wait}" " --receipt {output:q} >{log:q} 2>&1"

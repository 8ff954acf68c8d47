# At a site: every word of the replica read again, and its state compared with the version's.


rule verify:
    input:
        last_applied,
    output:
        receipt("{site}.verified"),
    log:
        logfile("{version}/{site}.verify"),
    benchmark:
        benchmarked("{version}/{site}.verify")
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
        "{params.dcr} verify {params.options} {params.needs}" " --receipt {output:q} >{log:q} 2>&1"

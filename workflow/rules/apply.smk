# At a site: the journal's words into the replica, in place.


rule apply:
    input:
        ancient(receipt("{site}.prepared")),
        decided,
    output:
        receipt("{site}.applied"),
    log:
        logfile("{version}/{site}.apply"),
    benchmark:
        benchmarked("{version}/{site}.apply")
    retries: 2
    threads: cores("site")
    resources:
        **asks("site"),
        mpi="mpirun",
    params:
        dcr=on_ranks,
        options=options,
        needs=needs,
        wait=config["wait_s"],
    shell:
        "{params.dcr} apply {params.options} {params.needs} --wait {params.wait}" " --receipt {output:q} >{log:q} 2>&1"

# At a site: fetch, relay, decode into a journal. The replica is only read.


rule refit:
    input:
        earlier("{site}.applied"),
        sealed,
    output:
        receipt("{site}.prepared"),
    log:
        logfile("{version}/{site}.refit"),
    benchmark:
        benchmarked("{version}/{site}.refit")
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
        "{params.dcr} refit {params.options} {params.needs} --wait {params.wait}" " --receipt {output:q} >{log:q} 2>&1"

# Figures for people, and for snakemake --report: payload, what changed, where the time went, how even the ranks were.


rule figures:
    input:
        results(),
    output:
        payload=report(
            f"{OUT}/report/payload.svg",
            caption="../report/payload.rst",
            category="Versions",
        ),
        changes=report(
            f"{OUT}/report/changes.svg",
            caption="../report/changes.rst",
            category="Versions",
        ),
        stages=report(
            f"{OUT}/report/stages.svg", caption="../report/stages.rst", category="Time"
        ),
        balance=report(
            f"{OUT}/report/balance.svg",
            caption="../report/balance.rst",
            category="Time",
        ),
        numbers=f"{OUT}/report/report.json",
    log:
        logfile("report"),
    benchmark:
        benchmarked("report")
    params:
        dcr=DCR,
        options=options,
        out=lambda wildcards, output: Path(output.numbers).parent,
    shell:
        "{params.dcr} report {params.options} --out {params.out:q} >{log:q} 2>&1"

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
        stages=report(f"{OUT}/report/stages.svg", caption="../report/stages.rst", category="Time"),
        balance=report(
            f"{OUT}/report/balance.svg",
            caption="../report/balance.rst",
            category="Time",
        ),
        page=f"{OUT}/report/report.html",
        numbers=f"{OUT}/report/report.json",
    log:
        logfile("report"),
    benchmark:
        benchmarked("report")
    params:
        dcr=DCR,
        options=options,
        versions=f"{VERSIONS[0]}..{VERSIONS[-1]}",
        receipts=lambda wildcards: f"{OUT}/receipts",
        out=lambda wildcards, output: Path(output.numbers).parent,
    shell:
        "{params.dcr} report {params.options} --versions {params.versions} --receipts {params.receipts:q} --html"
        " --out {params.out:q} >{log:q} 2>&1"

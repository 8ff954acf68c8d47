# Several versions per job, for who cannot wait for a scheduler between them: one job at the trainer and one at every
# site, side by side. They meet in the store alone, so that a version costs no job and no look at the queue. A version
# whose receipt is there is passed over; the next one's act holds it against the store.


rule publish:
    input:
        earlier_batch("committed"),
    output:
        receipt("committed", "{batch}"),
    log:
        logfile("{batch}/publish"),
    benchmark:
        benchmarked("{batch}/publish")
    retries: 2
    threads: cores("trainer")
    resources:
        **asks("trainer"),
        mpi="mpirun",
    params:
        dcr=on_ranks,
        alone=DCR,
        options=options,
        needs=needs,
        wait=config["wait_s"],
        train=config["train"] or "true",
        receipts=lambda wildcards, output: Path(output[0]).parent.parent,
        work=lambda wildcards: [str(item) for version in versions_of(wildcards) for item in work_of(version)],
    shell:
        """
        exec >{log:q} 2>&1
        needs=({params.needs})
        set -- {params.work:q}
        while [ $# -gt 0 ]; do
            encoded={params.receipts:q}/$1/encoded.json
            committed={params.receipts:q}/$1/committed.json
            trained={params.receipts:q}/$1/trained
            if [ ! -e "$encoded" ]; then
                if [ ! -e "$trained" ]; then # never twice: the version may be sealed from what is there
                    DCR_STEP=$2 DCR_CHECKPOINT=$3 bash -c {params.train:q}
                    mkdir -p {params.receipts:q}/$1
                    touch "$trained"
                fi
                {params.dcr} encode "$3" {params.options} --version "$1" "${{needs[@]}}" --receipt "$encoded"
            fi
            if [ ! -e "$committed" ]; then
                {params.alone} commit {params.options} --version "$1" --wait {params.wait} \
                    --needs "$encoded" --receipt "$committed"
            fi
            needs=(--needs "$committed")
            shift 3
        done
        cp "$committed" {output:q}
        """


rule follow:
    input:
        earlier_batch("{site}.applied"),
    output:
        receipt("{site}.applied", "{batch}"),
    log:
        logfile("{batch}/{site}.follow"),
    benchmark:
        benchmarked("{batch}/{site}.follow")
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
        receipts=lambda wildcards, output: Path(output[0]).parent.parent,
        versions=lambda wildcards: [f"{version:06d}" for version in versions_of(wildcards)],
    shell:
        """
        exec >{log:q} 2>&1
        needs=({params.needs})
        for version in {params.versions}; do
            prepared={params.receipts:q}/$version/{wildcards.site:q}.prepared.json
            applied={params.receipts:q}/$version/{wildcards.site:q}.applied.json
            if [ ! -e "$applied" ]; then
                {params.dcr} refit {params.options} --version "$version" --wait {params.wait} \
                    "${{needs[@]}}" --receipt "$prepared"
                {params.dcr} apply {params.options} --version "$version" --wait {params.wait} \
                    --needs "$prepared" --receipt "$applied"
            fi
            needs=(--needs "$applied")
        done
        cp "$applied" {output:q}
        """

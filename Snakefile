# One version after the other, from the trainer's checkpoints to the sites' replicas: docs/workflow.md.
from snakemake.utils import min_version

min_version("9.20")


# The software, for who runs all of a job inside of it. Ranks on several nodes enter it one by one: key `command`.
container: "containers/dcr-mpi.sif"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/start.smk"
include: "workflow/rules/encode.smk"
include: "workflow/rules/refit.smk"
include: "workflow/rules/decide.smk"
include: "workflow/rules/apply.smk"
include: "workflow/rules/batch.smk"
include: "workflow/rules/verify.smk"
include: "workflow/rules/report.smk"


localrules:
    all,
    replicas,
    decide,
    figures,


rule all:
    default_target: True
    input:
        results(),
        [f"{OUT}/report/report.json"] * TRAINER,

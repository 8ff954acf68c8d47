# All Python of the workflow: configuration, which version follows which, what a job asks for.
import math
import os
import re
import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import validate

from dcr_mpi.config import load
from dcr_mpi.errors import DcrError

validate(config, schema="../schemas/workflow.schema.yaml")
try:
    product = load(Path(config["dcr"]), {})
except DcrError as error:
    raise WorkflowError(f"dcr-mpi, exit code {error.code}: {error}") from None

# Every job reads this, too, and srun what it sets: as in slurm/job.sh.
os.environ.setdefault("SLURM_PMIX_FENCE", "ring")

OUT = config["out"]
DCR = config["command"] or f"{shlex.quote(sys.executable)} -m dcr_mpi"
TRAINER = config["here"]["trainer"]
SITES = product.trainer.sites if config["here"]["sites"] is None else config["here"]["sites"]
ABORTED = set(config["versions"]["aborted"])
VERSIONS = [v for v in range(config["versions"]["first"], config["versions"]["last"] + 1) if v not in ABORTED]
BATCH = config["batch"]

for name in [*SITES, *config["sites"]]:
    if name not in product.sites:
        raise WorkflowError(
            f"site {name!r}: {config['dcr']} knows {sorted(product.sites)}. Next: add it under sites there"
        )
if not VERSIONS:
    raise WorkflowError(f"versions {config['versions']}: none is left. Next: raise versions.last")


wildcard_constraints:
    version=r"\d{6}",
    batch=r"\d{6}-\d{6}",
    site="|".join(map(re.escape, SITES)) or "(?!)",


def receipt(name, version="{version}"):
    """Path of a receipt; a version is a number or a wildcard."""
    return f"{OUT}/receipts/{version if isinstance(version, str) else f'{version:06d}'}/{name}.json"


def logfile(name):
    return f"{OUT}/logs/{name}.log"


def benchmarked(name):
    return f"{OUT}/benchmarks/{name}.tsv"


def step(version):
    """The step that a version is made from: an aborted one leaves its step to the next."""
    steps = config["steps"]
    return steps["base"] + steps["every"] * (version - sum(number < version for number in ABORTED))


def checkpoint_of(version):
    return config["checkpoint"].format(step=step(version))


def batches():
    """Runs of versions that one job brings about."""
    return [VERSIONS[i : i + BATCH] for i in range(0, len(VERSIONS), BATCH)] if BATCH else []


def batch_name(versions):
    return f"{versions[0]:06d}-{versions[-1]:06d}"


def work_of(version):
    """A version's number, its step and that step's checkpoint."""
    return f"{version:06d}", step(version), checkpoint_of(version)


def versions_of(wildcards):
    first, last = map(int, wildcards.batch.split("-"))
    return [version for version in VERSIONS if first <= version <= last]


def previous(number):
    """The version before one; 0 is the start, where that is here; None where it is not this workflow's."""
    before = [version for version in VERSIONS if version < number]
    return before[-1] if before else 0 if config["start"] else None


def earlier(name):
    """Receipts that an act of a version goes on from: `name` of the one before, or what started it all.

    Receipts tell what was and stays so: only that they are there matters, never how old they are.
    """

    def find(wildcards):
        number = previous(int(wildcards.version))
        return go_on_from(name, wildcards, number, number)

    return find


def earlier_batch(name):
    """The same for a batch."""

    def find(wildcards):
        first = int(wildcards.batch.split("-")[0])
        before = [batch_name(versions) for versions in batches() if versions[0] < first]
        return go_on_from(name, wildcards, previous(first), before[-1] if before else "")

    return find


def go_on_from(name, wildcards, number, where):
    if number is None:
        return []
    if number:
        return ancient(receipt(name.format(**wildcards), where))
    # The trainer cuts versions for registered sites, so it needs all of them.
    own = [wildcards.site] if hasattr(wildcards, "site") else SITES
    return [ancient(receipt("policy", 0))] * TRAINER + [ancient(receipt(f"{site}.created", 0)) for site in own]


def sealed(wildcards):
    """Where the trainer is run from here too, its receipt; else the job waits for the version in the store."""
    return ancient(receipt("encoded", int(wildcards.version))) if TRAINER else []


def trained(wildcards):
    """The mark that a version's checkpoint was made by this workflow."""
    version = getattr(wildcards, "version", "000000")
    return ancient(f"{OUT}/receipts/{version}/trained") if config["train"] else []


def trained_before(wildcards):
    number = previous(int(wildcards.version)) if int(wildcards.version) else None
    return [] if number is None else ancient(f"{OUT}/receipts/{number:06d}/trained")


def last_applied(wildcards):
    unit = batch_name(batches()[-1]) if BATCH else int(wildcards.version)
    return ancient(receipt(f"{wildcards.site}.applied", unit))


def prepared(wildcards):
    return [ancient(receipt(f"{site}.prepared", int(wildcards.version))) for site in SITES]


def decided(wildcards):
    return ancient(receipt("committed", int(wildcards.version))) if TRAINER else []


def needs(wildcards, input):
    """Arguments by which an act itself holds the receipts that it goes on from against the store."""
    receipts = [str(path) for path in input if str(path).endswith(".json")]
    return shlex.join(part for path in receipts for part in ("--needs", path))


def options(wildcards):
    """Arguments of every act: the configuration, the site if it is a site's, the version if it is of one."""
    site = ["--site", wildcards.site] if hasattr(wildcards, "site") else []
    version = ["--version", wildcards.version] if hasattr(wildcards, "version") else []
    return shlex.join(["-c", config["dcr"], *site, *version])


def asked(side, key):
    """How to find what a job asks for: a site's may ask for something of its own."""
    if side == "trainer":
        return lambda wildcards: config["trainer"][key]
    return lambda wildcards: config["sites"].get(wildcards.site, {}).get(key, config["site"][key])


def cores(side):
    """Cores of a rank."""
    return asked(side, "threads")


def asks(side):
    """All else that a job asks for, as resources."""
    ranks, nodes, gpus = (asked(side, key) for key in ("ranks", "nodes", "gpus"))
    return {
        "cluster": asked(side, "cluster"),
        "runtime": asked(side, "minutes"),
        "mem_mb_per_cpu": asked(side, "memory_mib"),
        "nodes": nodes,
        "tasks": ranks,
        "gres": lambda wildcards: f"gpu:{gpus(wildcards)}" if gpus(wildcards) else "",
        "tasks_per_gpu": lambda wildcards: math.ceil(ranks(wildcards) / max(1, gpus(wildcards) * nodes(wildcards))),
    }


def on_ranks(wildcards, resources, threads):
    """The command on all ranks of a job, whose geometry srun does not inherit inside of a job of Snakemake's."""
    spread = f" -N {resources.nodes} -c {threads}" if Path(resources.mpi.split()[0]).name == "srun" else ""
    return f"{resources.mpi}{spread} -n {resources.tasks} {DCR}"


def results():
    """The last receipts of the sides that are here: all others come before them."""
    last = batch_name(batches()[-1]) if BATCH else VERSIONS[-1]
    return [receipt("committed", last)] * TRAINER + [receipt(f"{site}.verified", VERSIONS[-1]) for site in SITES]

"""A real Slurm cluster of several nodes on this machine, for tests and benchmarks: munged, slurmctld, slurmd per node.

Every node has its own host name, processes, mounts and shared memory (Linux namespaces), so that it can fail by itself
and take with it whatever ran there. The network is the machine's own. All of a cluster lies below one directory;
nothing is installed, no service is started, and several clusters know nothing of each other. It takes root.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_LIBC, _PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
_PORTS = range(22100, 32000, 20)  # below the ephemeral range
_NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "unshare")
_PMIX = Path("/usr/lib/x86_64-linux-gnu/pmix2/lib")
ENDED = frozenset(
    ["BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"]
)

# As much of a node as a job can see of it. The first process ignores SIGCHLD, so that no orphan stays a zombie.
# /dev/shm is the only place for temporary files that is a node's own, and its name is short enough for PMIx's sockets.
_NODE = """
set -e
hostname "$2"
mount -t tmpfs -o mode=1777 shm /dev/shm
mount --bind "$1/hosts" /etc/hosts
mount --bind "$1" /etc/slurm
[ ! -d "$1/pmix" ] || mount --bind "$1/pmix" "$3"
slurmd -D -f "$1/slurm.conf" -N "$2" &
trap '' CHLD
exec sleep infinity
"""

_CONF = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.sock,cred_expire={requeue_s}
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SwitchType=switch/none
MpiDefault=none
TmpFS=/dev/shm
SchedulerType=sched/backfill
SchedulerParameters={scheduler}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
FirstJobId={first_job}
ReturnToService=2
SlurmdParameters=config_overrides
MinJobAge=300
KillWait={kill_s}
SlurmdTimeout={silence_s}
SlurmctldTimeout=30
InactiveLimit=0
PropagateResourceLimitsExcept=ALL
NodeName={name}[1-{nodes}] NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cpus} Boards=1 SocketsPerBoard=1 \
CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory_mb} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP MaxTime=INFINITE DefaultTime=30 DefMemPerCPU=200 PriorityTier=1 \
GraceTime=60
PartitionName=urgent Nodes=ALL State=UP MaxTime=INFINITE DefaultTime=30 DefMemPerCPU=200 PriorityTier=2 PreemptMode=OFF
"""


def missing() -> str | None:
    """Why no cluster can be started here, for a test's skip; None if one can."""
    if os.geteuid() != 0:
        return "Slurm's nodes take root"
    lacking = [name for name in _NEEDED if _which(name) is None]
    if lacking:
        return f"no {', '.join(lacking)}: apt-get install --no-install-recommends munge slurmctld slurmd slurm-client"
    made = subprocess.run(["unshare", "--uts", "--ipc", "--mount", "--pid", "--fork", "true"], check=False)
    return "this machine makes no namespaces for nodes (a container without privileges?)" if made.returncode else None


class Cluster:
    """One cluster, running from :meth:`start` to :meth:`stop`; a context manager.

    Parameters
    ----------
    root : Path
        A new directory for everything that it writes; ``root/log`` has the daemons' logs.
    name : str
        The cluster's name; its nodes are ``name1``, ``name2``, ...
    nodes, cpus, memory_mb : int
        How many nodes, and what each is said to have; more than the machine has is allowed.
    requeue_s : int
        Seconds that Slurm lets pass before it starts a requeued job again (its default is 120).
    silence_s : int
        Seconds of silence after which a node is taken for dead (300).
    kill_s : int
        Seconds between SIGTERM and SIGKILL at a job's end (30).
    first_job : int
        Number of the first job; give clusters that are used together distant ones.
    scheduler : str
        Slurm's ``SchedulerParameters``; the default starts jobs at once.
    """

    AT_ONCE = "batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1"

    def __init__(
        self, root: Path, name: str = "train", nodes: int = 2, cpus: int = 4, memory_mb: int = 4000, *,
        requeue_s: int = 5, silence_s: int = 300, kill_s: int = 10, first_job: int = 1,
        scheduler: str = AT_ONCE,
    ) -> None:  # fmt: skip
        self.root, self.name, self.nodes = root.resolve(), name, nodes
        self._values = {
            "cpus": cpus, "memory_mb": memory_mb, "requeue_s": requeue_s, "silence_s": silence_s, "kill_s": kill_s,
            "first_job": first_job, "scheduler": scheduler,
        }  # fmt: skip
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """What sbatch, squeue and all others need in their environment to mean this cluster."""
        return {"SLURM_CONF": str(self.root / "slurm.conf")}

    def start(self, timeout_s: float = 60.0) -> Cluster:
        """Start everything and wait until every node takes jobs."""
        for folder in ("state", "log", "spool"):
            (self.root / folder).mkdir(parents=True)
        (self.root / "munge.key").write_bytes(random.randbytes(256))
        (self.root / "munge.key").chmod(0o600)
        names = "".join(f"127.0.0.1 {self.name}{i + 1}\n" for i in range(self.nodes))
        (self.root / "hosts").write_text(Path("/etc/hosts").read_text() + names)
        (self.root / "cgroup.conf").touch()  # slurmd looks for one, and for no cgroups where it is empty
        if (_PMIX / "libpmix.so.2").exists() and not (_PMIX / "libpmix.so").exists():
            # Debian 12 ships Slurm's PMIx plugin without the name under which it loads the library.
            shutil.copytree(_PMIX, self.root / "pmix")
            (self.root / "pmix/libpmix.so").symlink_to("libpmix.so.2")
        port = _free_ports(1 + self.nodes)
        (self.root / "slurm.conf").write_text(
            _CONF.format(
                name=self.name, host=socket.gethostname().partition(".")[0], root=self.root, nodes=self.nodes,
                port=port, first=port + 1, last=port + self.nodes, **self._values,
            )
        )  # fmt: skip
        try:
            self._spawn(
                "munged", "--foreground", "--force", f"--key-file={self.root}/munge.key",
                f"--socket={self.root}/munge.sock", f"--pid-file={self.root}/munged.pid",
                f"--log-file={self.root}/log/munged.log", f"--seed-file={self.root}/munge.seed",
            )  # fmt: skip
            self._until((self.root / "munge.sock").exists, "munged", timeout_s)
            self._spawn("slurmctld", "-D", "-c", "-f", f"{self.root}/slurm.conf")
            for node in range(1, self.nodes + 1):
                self.start_node(node)
            self._until(lambda: self.idle() == self.nodes, "the nodes", timeout_s)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End every daemon and, with its node, every process of every job; by process id."""
        self._kill(*self._daemons)

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_node(self, node: int) -> None:
        """Switch on a node (from 1), with nothing left of its own from before."""
        shutil.rmtree(self.root / f"spool/{self.name}{node}", ignore_errors=True)
        (self.root / f"spool/{self.name}{node}").mkdir()
        self._spawn(
            "unshare", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
            "sh", "-c", _NODE, "sh", str(self.root), f"{self.name}{node}", str(_PMIX), key=f"node{node}",
        )  # fmt: skip

    def kill_node(self, node: int) -> None:
        """Cut a node's power: its slurmd and all processes of its jobs are gone at once."""
        self._kill(f"node{node}")

    def kill_slurmd(self, node: int) -> None:
        """SIGKILL a node's slurmd only; processes of its jobs live on, unknown to the cluster."""
        (first,) = _children(self._daemons[f"node{node}"].pid)
        for pid in _children(first):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "slurmd":
                os.kill(pid, signal.SIGKILL)

    def run(self, *command: str, timeout_s: float = 30.0) -> str:
        """Output of one of Slurm's commands, which must succeed."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, text=True, capture_output=True, timeout=timeout_s,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def idle(self) -> int:
        """Nodes that wait for jobs; 0 while the controller does not answer."""
        try:
            return len(set(self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N", timeout_s=10).split()))
        except (RuntimeError, subprocess.TimeoutExpired):
            return 0

    def submit(self, *arguments: str, cwd: Path, env: dict[str, str] | None = None) -> int:
        """sbatch; the number of the job. ``env`` is what the job gets (default: this process's environment)."""
        done = subprocess.run(
            ["sbatch", "--parsable", *arguments], cwd=cwd, env={**(env or os.environ), **self.environment}, text=True,
            capture_output=True, timeout=30, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"sbatch {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
        return int(done.stdout)

    def job(self, number: int) -> dict[str, str]:
        """What ``scontrol show job`` tells: ``JobState``, ``ExitCode`` ("75:0"), ``Restarts``, ``NodeList``, ..."""
        shown = self.run("scontrol", "--oneliner", "show", "job", str(number))
        return dict(re.findall(r"(\S+?)=(.*?)(?= \S+?=|$)", shown.strip()))

    def state(self, number: int) -> str:
        """State of a job, such as RUNNING."""
        return self.job(number)["JobState"]

    def wait(self, number: int, timeout_s: float = 60.0, until: Sequence[str] = ()) -> dict[str, str]:
        """:meth:`job` once it ended, or is in one of some states."""
        wanted = set(until) or ENDED
        give_up = time.monotonic() + timeout_s
        while (job := self.job(number))["JobState"] not in wanted:
            if time.monotonic() > give_up:
                raise TimeoutError(f"job {number} is {job['JobState']} ({job.get('Reason')}) after {timeout_s:g} s")
            time.sleep(0.2)
        return job

    def clear(self, timeout_s: float = 60.0) -> None:
        """Cancel every job and wait until none is left running."""
        self.run("scancel", "--user", "root")
        self._until(lambda: not self.run("squeue", "-h", "-o", "%i").split(), "the jobs' end", timeout_s)

    def _spawn(self, *command: str, key: str | None = None) -> None:
        with open(self.root / "log" / f"{key or command[0]}.out", "ab") as log:
            self._daemons[key or command[0]] = subprocess.Popen(
                [_which(command[0]) or command[0], *command[1:]], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **self.environment, "PATH": _path()}, preexec_fn=_die_with_parent,
                start_new_session=True,
            )  # fmt: skip

    def _kill(self, *names: str) -> None:
        daemons = [self._daemons.pop(name) for name in names]
        nodes = [d.pid for name, d in zip(names, daemons, strict=True) if name.startswith("node")]
        inside = [pid for node in nodes for pid in _children(node)]
        for daemon in daemons:
            daemon.kill()
        for daemon in daemons:
            daemon.wait()
        for pid in inside:  # a node's first process dies with it, and the node's other processes with that
            while Path(f"/proc/{pid}").exists():
                time.sleep(0.01)

    def _until(self, ready: Callable[[], bool], what: str, timeout_s: float) -> None:
        give_up = time.monotonic() + timeout_s
        while not ready():
            dead = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if dead or time.monotonic() > give_up:
                raise RuntimeError(f"{', '.join(dead)} died" if dead else f"waited {timeout_s:g} s for {what}")
            time.sleep(0.1)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def _which(name: str) -> str | None:
    return shutil.which(name, path=_path())


def _free_ports(count: int) -> int:
    """First of ``count`` ports in a row that nobody listens on."""
    for first in random.sample(_PORTS, len(_PORTS)):
        if all(_is_free(first + i) for i in range(count)):
            return first
    raise RuntimeError(f"no {count} free ports in a row in {_PORTS}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _die_with_parent() -> None:
    """The daemons end when whoever started them is gone, even by SIGKILL."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

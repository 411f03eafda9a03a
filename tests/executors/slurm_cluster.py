"""A Slurm of one node on this machine, for tests: its own daemons, key, ports and state, all in a
temporary folder that goes with it."""
from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

PROGRAMS = ["slurmctld", "slurmd", "munged", "sbatch", "squeue", "scontrol", "scancel", "sinfo"]
CONFIGURATION = r"""
ClusterName=servelab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=2
MessageTimeout=100
SlurmdTimeout=600
BatchStartTimeout=300
PropagatePrioProcess=1
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 Sockets=1 CoresPerSocket=4 ThreadsPerCore=1 \
  RealMemory=4096 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes={host} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def why_not() -> str:
    """Why no Slurm can be started here; empty when one can."""
    missing = [name for name in PROGRAMS if find(name) is None]
    if missing:
        return f"Slurm is not installed: no {', '.join(missing)}; .ci/setup --slurm installs it"
    if os.geteuid() != 0:
        return "slurmd needs root"
    return ""


def find(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_until(done: Any, what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)


class Cluster:
    """Started by the constructor, which raises RuntimeError with the logs' ends when it fails."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="servelab-slurm-"))
        self.folder.chmod(0o755)
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        try:
            self.start()
        except Exception as error:
            logs = "\n".join(path.read_text(errors="replace")[-2000:]
                             for path in sorted(self.folder.glob("*.log")))
            self.stop()
            raise RuntimeError(f"{error}\n{logs}") from error

    def start(self) -> None:
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        host = socket.gethostname().split(".")[0]
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(
            host=host, folder=self.folder, ports=free_ports(2)))
        self.spawn("munged", "--foreground", "--force", f"--key-file={key}",
                   f"--socket={self.folder}/munge.socket", f"--pid-file={self.folder}/munged.pid",
                   f"--seed-file={self.folder}/munge.seed", "--log-file=/dev/null")
        wait_until((self.folder / "munge.socket").exists, "munged", 20)
        self.spawn("slurmctld", "-D", "-c", "-f", f"{self.folder}/slurm.conf")
        self.spawn("slurmd", "-D", "-f", f"{self.folder}/slurm.conf")
        wait_until(lambda: "idle" in self.tool("sinfo", "--noheader", "--format=%T", check=False),
                   "an idle node", 60)

    def spawn(self, name: str, *arguments: str) -> None:
        """Before other programs where that is allowed: a daemon that a busy machine keeps waiting
        has its tasks requeued, which takes minutes. Tasks get the priority of who submits them."""
        def urgent() -> None:
            try:
                os.nice(-10)
            except OSError:
                pass

        with (self.folder / f"{name}.out.log").open("wb") as log:
            self.daemons.append(subprocess.Popen(
                [str(find(name)), *arguments], env=self.environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
                preexec_fn=urgent))

    def tool(self, name: str, *arguments: str, check: bool = True) -> str:
        done = subprocess.run([name, *arguments], env=self.environment, text=True,
                              capture_output=True, timeout=60)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def queue(self) -> list[tuple[str, str]]:
        """(job_task, state) of everything that has not ended."""
        lines = self.tool("squeue", "--noheader", "--array", "--format=%i|%T").splitlines()
        return [(line.split("|")[0], line.split("|")[1]) for line in lines]

    def stop(self) -> None:
        if (self.folder / "slurm.conf").exists() and len(self.daemons) == 3:
            try:
                self.tool("scancel", "--user=root", "--signal=KILL", "--full", check=False)
                self.tool("scancel", "--user=root", check=False)
                wait_until(lambda: not self.queue(), "an empty queue", 20)
            except (AssertionError, subprocess.TimeoutExpired):
                pass
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

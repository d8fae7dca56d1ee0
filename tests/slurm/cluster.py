"""A SLURM cluster on one machine: munged and slurmctld in the head of `tests/hosts.py`, and a slurmd on each of its hosts."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..hosts import Hosts, wait_until
from ..hosts import why_not as why_no_hosts

PROGRAMS = ("munged", "slurmctld", "slurmd", "salloc", "sbatch", "srun", "scancel", "scontrol", "sinfo", "squeue")
GPUS = 2  # on each node; devices that every machine has stand for them
KILL_WAIT = 20  # seconds between SIGTERM and SIGKILL when a job is cancelled
_UP = 40.0  # seconds for all nodes to be idle
_HURRIED = "SchedulerParameters=sched_interval=2,bf_interval=2\n"  # jobs would wait for up to 3 s

_CONF = """\
ClusterName=podrun
SlurmctldHost=head(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
GresTypes=gpu
ReturnToService=2
KillWait={kill_wait}
{nodes}
PartitionName=p Nodes={names} Default=YES State=UP
"""


def why_not() -> str | None:
    """Return why there can be no such cluster here; None if there can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if not any(Path(folder, name).exists() for folder in path.split(":"))]
    return f"a SLURM cluster needs {', '.join(missing)} (Debian: slurm-wlm, munge)" if missing else why_no_hosts()


class Cluster:
    """The nodes h0 to h3 with two CPUs and two GPUs each. Users' processes run as root, with a home of their own on each."""

    def __init__(self, more: str = "", hurried: bool = True) -> None:
        """Starts it. `more`: further lines of slurm.conf. `hurried`: it looks at its queue more often than by default."""
        self._more = more + _HURRIED * hurried
        self.hosts = Hosts(4)
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._folder = self.hosts.folder / "slurm"
        try:
            self._write_files()
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def env(self) -> dict[str, str]:
        """For what runs in the head. HOME is the same on every node, and another folder on each."""
        plain = {name: value for name, value in self.hosts.env.items() if not name.startswith("SLURM_")}
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        home = str(self.hosts.home_inside())
        return {**plain, "SLURM_CONF": str(self._folder / "slurm.conf"), "HOME": home, "PATH": path}

    def ask(self, *command: str) -> str:
        """Runs one of SLURM's programs, and returns its output."""
        done = self.hosts.run(command, env=self.env)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def jobs(self) -> list[str]:
        """Ids of all jobs that are not over."""
        return self.ask("squeue", "--noheader", "--format=%A").split()

    def restore(self) -> None:
        """Ends all jobs, and puts all nodes back."""
        for job in self.jobs():
            for how in (["--signal=KILL"], []):  # not an error for one that ends meanwhile
                self.hosts.run(["scancel", *how, job], env=self.env)
        for line in self.ask("sinfo", "--noheader", "--Node", "--format=%N %t").splitlines():
            name, state = line.split()
            if re.search("down|drain|drng", state):
                self.ask("scontrol", "update", f"nodename={name}", "state=resume")
        self._await_idle()

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.kill()
        for daemon in self._daemons:
            daemon.wait(10)
        self.hosts.close()

    def _write_files(self) -> None:
        self._folder.mkdir()
        (self._folder / "state").mkdir()
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        nodes = [
            f"NodeName={name} NodeAddr={self.hosts.address(name)} CPUs=2 Gres=gpu:{GPUS}" for name in self.hosts.names
        ]
        names = ",".join(self.hosts.names)
        conf = _CONF.format(folder=self._folder, nodes="\n".join(nodes), names=names, kill_wait=KILL_WAIT)
        (self._folder / "slurm.conf").write_text(conf + self._more)
        (self._folder / "gres.conf").write_text(f"Name=gpu File=/dev/tty[1-{GPUS}]\n")

    def _start(self) -> None:
        files = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munge.pid", "seed-file": "munge.seed"}
        options = [f"--{name}={self._folder / file}" for name, file in {**files, "log-file": "munge.log"}.items()]
        self._daemon([*self.hosts.prefix, "munged", "--foreground", "--force", *options])
        wait_until((self._folder / "munge.sock").exists, "munged: see munge.log")
        head = ["unshare", "--uts", "sh", "-c", "hostname head && exec slurmctld -D -c"]
        self._daemon([*self.hosts.prefix, *head])
        for name in self.hosts.names:
            conf = f"SLURM_CONF={self._folder / 'slurm.conf'}"
            self._daemon(self.hosts.command_on(name, ["env", conf, "slurmd", "-D", "-N", name]))
        self._await_idle()

    def _daemon(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        with (self._folder / "daemons.log").open("ab") as log:
            self._daemons.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=env or self.env,
                    start_new_session=True,
                )
            )

    def _await_idle(self) -> None:
        def idle() -> bool:
            done = self.hosts.run(["sinfo", "--noheader", "--format=%D %t"], env=self.env)
            return str(done.stdout).strip() == f"{len(self.hosts.names)} idle"

        wait_until(idle, f"all nodes to be idle: see {self._folder}", _UP)

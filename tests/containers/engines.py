"""Hosts for tests whose containers are of the real podman or docker. Each host has its own storage, and docker's daemon.

A container engine needs more than a namespace gives: cgroups, ids for users, limits that it may set. What is missing is given
here, by mounts and files that only these hosts see.
"""

from __future__ import annotations

import contextlib
import resource
import shutil
import subprocess
import tarfile
from pathlib import Path

from ..hosts import USER, USER_ID, Hosts, wait_until
from . import Image, make_image

TOOLS = {
    "podman": ("podman", "crun", "catatonit", "newuidmap", "slirp4netns"),
    "docker": ("docker", "dockerd", "containerd", "runc", "docker-init", "docker-registry"),
}
PACKAGES = {
    "podman": "podman uidmap slirp4netns crun catatonit",
    "docker": "docker.io containerd runc tini docker-registry",
}
IMAGE = "localhost/podrun-test:1"
ENV = ("OF_IMAGE=image", "OF_BOTH=image")
_REGISTRY = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}/registry}}}}
http: {{addr: "127.0.0.1:5000"}}
"""
_PODMAN_CONF = """\
[containers]
cgroups = "disabled"
default_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]
[engine]
lock_type = "file"
events_logger = "file"
cgroup_manager = "cgroupfs"
"""
_PODMAN = """\
mount -t cgroup2 none /sys/fs/cgroup
for folder in /run/containers /run/libpod /run/crun /run/user /var/lib/containers; do
  mkdir -p $folder
  mount -t tmpfs none $folder
done
install -d -o {id} -g {id} -m 700 /run/user/{id}
for file in group subuid subgid containers/containers.conf; do
  [ -e /etc/$file ] || touch /etc/$file
  mount --bind {folder}/$(basename $file) /etc/$file
done
"""
_DOCKER = """\
mkdir -p /var/lib/docker
mount -t tmpfs none /run
mkdir /run/sshd
mount -t tmpfs none /var/lib/docker
exec dockerd --iptables=false --bridge=none
"""


def why_no(engine: str) -> str | None:
    """Return what is missing for containers of the engine; None if nothing is."""
    folders = ("/usr/libexec/podman", "/usr/sbin")
    missing = [
        tool for tool in TOOLS[engine] if not (shutil.which(tool) or any(Path(f, tool).exists() for f in folders))
    ]
    return f"{engine} needs {', '.join(missing)}: apt-get install {PACKAGES[engine]}" if missing else None


class EngineHosts(Hosts):
    """Hosts with a container engine and an image: of podman for root and for the ordinary user, of docker for root."""

    def __init__(self, count: int, engine: str) -> None:
        """Raises RuntimeError or TimeoutError if the engine cannot run a container here."""
        super().__init__(count)
        self.engine = engine
        self._daemons: list[subprocess.Popen[bytes]] = []
        try:
            self._archive = self.folder / "image.tar"
            self.image = self._make_image()
            if engine == "podman":
                self._set_up_podman()
            else:
                self._start_docker()
            self.cli(self.names[0], "run", "--rm", "--net=host", "--init", "--volume=/usr:/usr:ro", IMAGE, "true")
        except BaseException:
            self.close()
            raise

    def cli(self, name: str, *args: str, user: str = "root") -> str:
        """Run the engine's command on a host, and return its stdout. Raises RuntimeError if it fails."""
        return self.run_on(name, "sh", "-c", f'cd && exec {self.engine} "$@"', "sh", *args, user=user)

    def containers(self, user: str = "root") -> list[str]:
        """Return the containers on all hosts, also those that have ended."""
        rows = (
            self.cli(name, "ps", "--all", "--format={{.ID}} {{.Status}} {{.Labels}}", user=user) for name in self.names
        )
        return [line for row in rows for line in row.splitlines()]

    def move_to_registry(self, name: str) -> str:
        """Push the image to a registry that this starts on a host of docker, and remove it there. Returns its new name."""
        image = "127.0.0.1:5000/lab/jax:1"
        settings, log = self.folder / "registry.yml", self.folder / "registry.log"
        settings.write_text(_REGISTRY.format(folder=self.folder))
        with log.open("wb") as output:
            command = self.command_on(name, ["docker-registry", "serve", str(settings)])
            self._daemons.append(subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True))
        wait_until(lambda: "listening on" in log.read_text(), f"the registry: see {log}")
        for command in (["tag", IMAGE, image], ["push", image], ["rmi", image, IMAGE]):
            self.cli(name, *command)
        return image

    def leftovers(self) -> list[str]:
        """Return processes on the hosts that are the engine's for a container, or in one."""
        marks = (
            "podman run",
            "docker run",
            "conmon",
            "shim",
            "podman-init",
            "docker-init",
            "agents/",
            ".py",
            "sleep 1000",
        )
        args = (process.args for name in self.names for process in self.processes(name))
        return [line for line in args if any(mark in line for mark in marks) and "sshd" not in line]

    def close(self) -> None:
        for daemon in getattr(self, "_daemons", []):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
        super().close()

    def _make_image(self) -> Image:
        image = make_image(self.folder / "image" / "root")
        # docker puts its init into /sbin, which must not be below a mounted /usr
        (image.path / "sbin").unlink()
        (image.path / "sbin").mkdir()
        (image.path / "tmp").chmod(0o1777)
        with tarfile.open(self._archive, "w") as archive:
            archive.add(image.path, ".")
        self._archive.chmod(0o644)
        return Image(image.path, "")

    def _import_image(self, name: str, user: str) -> None:
        self.cli(
            name, "import", *(f"--change=ENV {variable}" for variable in ENV), str(self._archive), IMAGE, user=user
        )

    def _set_up_podman(self) -> None:
        files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1 << 16)
        (self.folder / "containers.conf").write_text(_PODMAN_CONF.format(files=files))
        groups = f"{USER}:x:{USER_ID}:\n{USER}-too:x:{USER_ID + 1000}:{USER}\n"
        (self.folder / "group").write_text(Path("/etc/group").read_text() + groups)
        for name in ("subuid", "subgid"):
            (self.folder / name).write_text(f"{USER}:300000:65536\n")
        for name in self.names:
            self.run_on(name, "bash", "-ec", _PODMAN.format(folder=self.folder, id=USER_ID))
            for user in ("root", USER):
                self._import_image(name, user)

    def _start_docker(self) -> None:
        for name in self.names:
            log = self.folder / f"{name}.dockerd.log"
            with log.open("wb") as output:
                command = self.command_on(name, ["bash", "-ec", _DOCKER])
                self._daemons.append(
                    subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
                )
        for name in self.names:
            log = self.folder / f"{name}.dockerd.log"
            wait_until(lambda log=log: "API listen on" in log.read_text(), f"docker's daemon: see {log}")  # type: ignore[misc]
            self._import_image(name, "root")

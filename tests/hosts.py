"""Pods of real hosts on one machine, for tests: network namespaces with an sshd in each.

`Hosts` are machines as far as podrun can tell: own address, hostname, host key, processes and home directories; their
files are otherwise those of the machine. `LiteHosts` is one sshd that answers on as many loopback addresses as are asked
for. Both need root, and touch nothing outside their namespaces.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TOOLS = ("ip", "iptables", "nsenter", "unshare", "mount", "ssh", "ssh-keygen", "sshd")
USER = "worker"  # an ordinary account on the hosts, beside root
USER_ID = 2001
COLLEAGUE = "colleague"  # another one
COLLEAGUE_ID = 2002
NO_SHELL = "guest"  # an account that may log in by SSH and run nothing
_USER_IDS = {"root": 0, USER: USER_ID, COLLEAGUE: COLLEAGUE_ID, NO_SHELL: 2003}
_NETNS = Path("/run/netns")
_PREFIX = "podrun-"
_START = 20.0  # seconds for an sshd to listen
_serial = itertools.count()


def why_not() -> str | None:
    """Return why there can be no such hosts here; None if there can."""
    missing = [tool for tool in TOOLS if _which(tool) is None]
    if sys.platform != "linux":
        return "hosts for SSH tests need Linux"
    if missing:
        return f"hosts for SSH tests need {', '.join(missing)}"
    if os.geteuid() != 0:
        return "hosts for SSH tests need root: they are network namespaces"
    try:
        _run("unshare", "--net", "--mount", "--pid", "--uts", "--fork", "true")
    except RuntimeError as error:
        return f"hosts for SSH tests need namespaces: {error}"
    return None


@dataclass(frozen=True)
class Process:
    """A process of a host, by the id that it has outside."""

    pid: int
    uid: int
    args: str

    def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class _Net:
    """A network namespace, with a folder, a client key and a known_hosts file."""

    def __init__(self) -> None:
        _sweep()
        self.folder = Path(tempfile.mkdtemp(prefix="podrun-hosts-"))
        self.folder.chmod(0o755)
        self.id = f"{_PREFIX}{os.getpid()}-{next(_serial)}"
        self.head = f"{self.id}-head"
        self.key = self.folder / "client"
        self.known_hosts = self.folder / "known_hosts"
        self._names: list[str] = []
        self._sshds: dict[str, subprocess.Popen[bytes]] = {}
        atexit.register(self.close)
        make_key(self.key)
        (self.folder / "authorized_keys").write_text(self.key.with_suffix(".pub").read_text())
        self.home = self.folder / "launcher"  # HOME of what runs in the head
        (self.home / ".ssh").mkdir(parents=True)
        (self.folder / "etc_hosts").write_text("127.0.0.1 localhost\n")
        self._add_namespace(self.head)

    @property
    def env(self) -> dict[str, str]:
        """For what runs in the head: nothing of the machine's own SSH set-up."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("SSH_")}
        return {**env, "HOME": str(self.home)}

    @property
    def prefix(self) -> list[str]:
        """Put before a command, this runs it in the head. It keeps its process id and its working directory."""
        bind = f'mount --bind {self.folder}/etc_hosts /etc/hosts && exec "$@"'
        return ["nsenter", f"--net={_NETNS / self.head}", "unshare", "--mount", "sh", "-c", bind, "sh"]

    def run(self, command: Sequence[str], timeout: float = 240, **options: object) -> subprocess.CompletedProcess[str]:
        """Runs a command where the launcher runs."""
        settings = {"env": self.env, "capture_output": True, "text": True, **options}
        return subprocess.run([*self.prefix, *command], timeout=timeout, **settings)  # type: ignore[call-overload,no-any-return]

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Puts this thread, and those that it starts, into the head's network. Names of hosts do not resolve there."""
        with open("/proc/thread-self/ns/net") as before:
            _setns(_NETNS / self.head)
            try:
                yield
            finally:
                _setns(Path(f"/proc/self/fd/{before.fileno()}"))

    def close(self) -> None:
        """Ends all processes and removes everything. Safe to call twice."""
        atexit.unregister(self.close)
        for process in self._sshds.values():
            process.kill()
        for process in self._sshds.values():
            process.wait(10)
        for name in self._names:
            _remove_namespace(name)
        self._names.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _add_namespace(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self._names.append(name)
        _run("ip", "-n", name, "link", "set", "lo", "up")

    def _start_sshd(self, name: str, script: str, keys: Sequence[Path], options: Mapping[str, str]) -> None:
        """Starts an sshd in the namespaces of a host, after `script`, and waits until it listens."""
        Path("/run/sshd").mkdir(exist_ok=True)
        settings = {
            "AuthorizedKeysFile": str(self.folder / "authorized_keys"),
            "StrictModes": "no",
            "PidFile": "none",
            "UsePAM": "no",
            "UseDNS": "no",
            "PermitRootLogin": "prohibit-password",
            "Subsystem": "sftp internal-sftp",
            "MaxStartups": "2000",
            **({"PerSourcePenalties": "no"} if _openssh() >= (9, 8) else {}),
            **options,
        }
        sshd = [str(_which("sshd")), "-D", "-e", "-f", "/dev/null"]
        for key in keys:
            sshd += ["-h", str(key)]
        for option, value in settings.items():
            sshd += ["-o", f"{option}={value}"]
        log = self.folder / f"{name}.log"
        space = f"--net={_NETNS / self._space(name)}"
        unshare = ["unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        with log.open("wb") as output:
            self._sshds[name] = subprocess.Popen(
                ["nsenter", space, *unshare, "bash", "-ec", f'{script}\nexec "$@"', "bash", *sshd],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(lambda: "Server listening" in log.read_text(errors="replace"), f"sshd of {name}: see {log}", _START)

    def _space(self, name: str) -> str:
        return f"{self.id}-{name}"


class Hosts(_Net):
    """`count` hosts h0, h1, ...; the launcher's own place is the head, which reaches them by name or address."""

    def __init__(self, count: int = 4, options: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.names = [f"h{i}" for i in range(count)]
        self._cut: set[str] = set()
        self._rules: list[tuple[str, list[str]]] = []
        self._options = dict(options or {})
        try:
            self._write_files()
            self._add_bridge()
            for name in self.names:
                self._add_host(name)
                self.start(name)
        except BaseException:
            self.close()
            raise

    def address(self, name: str) -> str:
        return f"10.77.0.{10 + self.names.index(name)}"

    def home_of(self, name: str, user: str = "root") -> Path:
        """A host's home directory, seen from outside; on the host it is `home_inside(user)`."""
        return self.folder / name / user

    def home_inside(self, user: str = "root") -> Path:
        """A user's home directory, as every host sees its own."""
        return self.folder / "home" / user

    def host_key(self, name: str) -> str:
        """`ssh-ed25519 AAAA...`."""
        return " ".join((self.folder / name / "host_key.pub").read_text().split()[:2])

    def start(self, name: str, options: Mapping[str, str] | None = None) -> None:
        """Starts a host that has been killed, or one more sshd option or other."""
        lines, home = [f"hostname {name}"], self.folder / "home"
        lines += [f"mount --bind {self.folder}/etc_{file} /etc/{file}" for file in ("hosts", "passwd", "shadow")]
        lines += [f"mount --bind {self.home_of(name, user)} {home / user}" for user in _USER_IDS]
        if (boot := self.folder / name / "boot_id").exists():
            lines.append(f"mount --bind {boot} /proc/sys/kernel/random/boot_id")
        given = {**self._options, **(options or {})}
        self._start_sshd(name, "\n".join(lines), [self.folder / name / "host_key"], given)

    def kill(self, name: str) -> None:
        """The host loses its power: every process of it is gone at once."""
        process = self._sshds[name]
        process.kill()  # takes the first process of the host with it, and that all others
        process.wait(10)

    def restart(self, name: str, options: Mapping[str, str] | None = None) -> None:
        self.kill(name)  # and another boot id
        (self.folder / name / "boot_id").write_text(f"{time.time_ns()}\n")
        self.start(name, options)

    def cut(self, name: str) -> None:
        """Unplugs the host's cable: no packet arrives, and nobody is told."""
        self._cut.add(name)
        self.set_cable(name, "down")

    def set_cable(self, name: str, state: str) -> None:
        _run("ip", "-n", self.head, "link", "set", f"v{self.names.index(name)}", state)

    def restore(self) -> None:
        """All cables and all ports as they were, and every host up."""
        while self._cut:
            self.set_cable(self._cut.pop(), "up")
        for name, rule in self._rules:
            self._iptables(name, "-D", rule)
        self._rules.clear()
        for name in self.names:
            if self._sshds[name].poll() is not None:
                self.start(name)

    def block(self, name: str, port: int, source: str | None = None, how: str = "DROP") -> None:
        """Packets to a port of the host are dropped; `how="REJECT"` refuses them."""
        rule = ["-p", "tcp", "--dport", str(port), *(["-s", source] if source else []), "-j", how]
        self._iptables(name, "-A", rule)
        self._rules.append((name, rule))

    def kill_sessions(self, name: str) -> int:
        """Break all SSH connections to the host, and return their processes' number; its sshd goes on listening."""
        sessions = [p for p in self.processes(name) if re.match(r"sshd(-session|-auth)?: (?!/)", p.args)]
        return len([process.kill() for process in sessions])

    def processes(self, name: str) -> list[Process]:
        """All processes of the host, its sshd included, and those in PID namespaces of their own."""
        space = os.readlink(f"/proc/{self._init(name)}/ns/net")
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(folder / "ns" / "net") == space:
                    args = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    if args:  # a zombie has none
                        found.append(Process(int(folder.name), folder.stat().st_uid, args))
        return found

    def command_on(self, name: str, command: Sequence[str], user: str = "root") -> list[str]:
        """The command line that runs a command on the host, without SSH."""
        enter = ["nsenter", "-t", str(self._init(name)), "--net", "--mount", "--uts", "--pid"]
        who = [] if user == "root" else [f"--setuid={_USER_IDS[user]}", f"--setgid={_USER_IDS[user]}"]
        return [*enter, *who, "env", f"HOME={self.home_inside(user)}", *command]

    def run_on(self, name: str, *command: str, user: str = "root", timeout: float = 60) -> str:
        """Runs a command on the host, without SSH; its stdout. Raises RuntimeError if it fails."""
        return _run(*self.command_on(name, command, user), timeout=timeout)

    def _init(self, name: str) -> int:
        """The first process of the host: its sshd."""
        unshare = self._sshds[name].pid
        children = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
        if not children:
            raise RuntimeError(f"{name} is down")
        return int(children[0])

    def _iptables(self, name: str, action: str, rule: Sequence[str]) -> None:
        _run("nsenter", f"--net={_NETNS / self._space(name)}", "iptables", "-w", "5", action, "INPUT", *rule)

    def _write_files(self) -> None:
        home = self.folder / "home"
        for name in _USER_IDS:
            (home / name).mkdir(parents=True)
        shells = {NO_SHELL: "/usr/sbin/nologin"}
        ours = [
            f"{name}:x:{uid}:{uid}::{home / name}:{shells.get(name, '/bin/bash')}" for name, uid in _USER_IDS.items()
        ]
        others = [s for s in Path("/etc/passwd").read_text().splitlines() if s.split(":")[0] not in _USER_IDS]
        (self.folder / "etc_passwd").write_text("\n".join([*ours, *others]) + "\n")
        (self.folder / "etc_shadow").write_text("".join(f"{name}:*:19000:0:99999:7:::\n" for name in _USER_IDS))
        (self.folder / "etc_shadow").chmod(0o600)
        with (self.folder / "etc_hosts").open("a") as file:
            file.write("10.77.0.1 head\n" + "".join(f"{self.address(name)} {name}\n" for name in self.names))

    def _add_bridge(self) -> None:
        _run("ip", "-n", self.head, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", self.head, "link", "set", "br0", "up")
        _run("ip", "-n", self.head, "addr", "add", "10.77.0.1/24", "dev", "br0")

    def _add_host(self, name: str) -> None:
        space, port, address = self._space(name), f"v{self.names.index(name)}", self.address(name)
        self._add_namespace(space)
        veth = ("type", "veth", "peer", "name", "eth0", "netns", space)
        _run("ip", "-n", self.head, "link", "add", port, *veth)
        _run("ip", "-n", self.head, "link", "set", port, "master", "br0", "up")
        _run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        _run("ip", "-n", space, "link", "set", "eth0", "up")
        for user, uid in _USER_IDS.items():
            self.home_of(name, user).mkdir(parents=True)
            os.chown(self.home_of(name, user), uid, uid)
        make_key(self.folder / name / "host_key")
        with self.known_hosts.open("a") as file:
            file.write(f"{name},{address} {self.host_key(name)}\n")


class LiteHosts(_Net):
    """One sshd that is every host of 127.0.0.0/8, for many hosts at once: they share everything."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.addresses = [f"127.0.{1 + i // 200}.{1 + i % 200}" for i in range(count)]
        try:
            key = self.folder / "host_key"
            make_key(key)
            public = " ".join(key.with_suffix(".pub").read_text().split()[:2])
            self.known_hosts.write_text("".join(f"{address} {public}\n" for address in self.addresses))
            home = self.folder / "root"
            home.mkdir()
            passwd = self.folder / "etc_passwd"
            others = [s for s in Path("/etc/passwd").read_text().splitlines() if not s.startswith("root:")]
            passwd.write_text("\n".join([f"root:x:0:0::{home}:/bin/bash", *others]) + "\n")
            shadow = self.folder / "etc_shadow"
            shadow.write_text("root:*:19000:0:99999:7:::\n")
            script = f"mount --bind {passwd} /etc/passwd\nmount --bind {shadow} /etc/shadow"
            self._start_sshd("head", script, [key], {"LogLevel": "INFO"})
        except BaseException:
            self.close()
            raise


def make_key(path: Path, passphrase: str = "", kind: str = "ed25519") -> None:
    _run("ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path))


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    """Raises TimeoutError. What takes long to ask, such as a command, is asked less often.

    The limit is for a slow machine, and no expectation.
    """
    deadline = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        if now > deadline:
            raise TimeoutError(what)
        time.sleep(min(1.0, max(0.02, 4 * (now - asked))))


def _sweep() -> None:
    """Removes what a test run has left behind that was killed."""
    for path in _NETNS.glob(f"{_PREFIX}*"):
        owner = re.match(rf"{_PREFIX}(\d+)-", path.name)
        if owner and not Path("/proc", owner[1]).exists():
            _remove_namespace(path.name)


def _remove_namespace(name: str) -> None:
    with contextlib.suppress(RuntimeError):
        for pid in _run("ip", "netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _run("ip", "netns", "del", name)


def _run(*command: str, timeout: float = 30) -> str:
    """Its stdout. Raises RuntimeError, with its stderr, if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:6])}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def _which(tool: str) -> str | None:
    return shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/sbin")


def _openssh() -> tuple[int, int]:
    text = subprocess.run(["ssh", "-V"], capture_output=True, text=True, timeout=10).stderr
    version = re.search(r"OpenSSH_(\d+)\.(\d+)", text)
    return (int(version[1]), int(version[2])) if version else (0, 0)


def _setns(path: Path) -> None:
    """os.setns is of Python 3.12."""
    with path.open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0x40000000):  # CLONE_NEWNET
            raise OSError(ctypes.get_errno(), "setns", str(path))

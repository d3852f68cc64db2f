"""Network namespaces that stand for separate hosts: each has a name, an address and a cable to a relay that can delay, lose and be cut."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

RELAY = Path(__file__).with_name("relay.py")
PROGRAMS = ("ip", "iptables", "unshare")
NETWORK = "10.77.0."
PREFIX = "transom-"

ENTER = 'echo "$0" > /proc/sys/kernel/hostname && mount --bind "$1" /etc/hosts && shift && exec "$@"'
"""Shell program that gives a process the name of its host, and the names of all."""

_numbers = itertools.count()


@cache
def why_not() -> str | None:
    """Return the reason why this machine can have no hosts; None if it can."""
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        return f"{' and '.join(missing)} not installed"
    name = f"{PREFIX}{os.getpid()}-probe"
    added = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if added.returncode == 0:
        run("ip", "netns", "del", name)
    return None if added.returncode == 0 else f"network namespaces are not permitted: {added.stderr.strip()}"


def run(*command: str) -> str:
    """Run a short program that must succeed; return what it printed."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{' '.join(command)}: {ended.stderr}"
    return ended.stdout


class Hosts:
    """Hosts that reach each other, named ``host-0``, ``host-1`` and so on.

    Attributes:
        names: their names.
        resolved: for each host, the file that has the addresses of all names; in place of /etc/hosts.
    """

    def __init__(self, n: int, folder: Path, seconds: float) -> None:
        """Name ``n`` hosts, whose messages take ``seconds``; ``create_hosts`` creates them."""
        mine = f"{PREFIX}{os.getpid()}-{next(_numbers)}-"
        self.names = [f"host-{number}" for number in range(n)]
        self._spaces, self._relay = [mine + name for name in self.names], mine + "relay"
        self._seconds, self.resolved = seconds, [folder / f"names-on-{name}" for name in self.names]
        for path in self.resolved:
            path.write_text("127.0.0.1 localhost\n" + "".join(f"{NETWORK}{i} {name}\n" for i, name in enumerate(self.names, 1)))

    @property
    def spaces(self) -> list[str]:
        """The network namespaces, that of the relay included."""
        return [*self._spaces, self._relay]

    def connect(self) -> "subprocess.Popen[bytes]":
        """Create the namespaces and their cables; return the process of the relay."""
        for space in self.spaces:
            run("ip", "netns", "add", space)
        pairs = [(f"port{number}", f"host{number}") for number in range(len(self._spaces))]
        for port, host in pairs:
            run("ip", "-n", self._relay, "link", "add", port, "type", "veth", "peer", "name", host)
            run("ip", "-n", self._relay, "link", "set", port, "up")
        command = ["ip", "netns", "exec", self._relay, sys.executable, str(RELAY), str(self._seconds), *map(",".join, pairs)]
        relay = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert relay.stdout is not None and relay.stdout.readline() == b"ready\n"
        for number, ((_, host), space) in enumerate(zip(pairs, self._spaces, strict=True), 1):
            run("ip", "-n", self._relay, "link", "set", host, "netns", space, "name", "eth0")
            run("ip", "-n", space, "addr", "add", f"{NETWORK}{number}/24", "dev", "eth0")
            for interface in ("lo", "eth0"):
                run("ip", "-n", space, "link", "set", interface, "up")
        return relay

    def start(self, number: int, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        """Start a program on a host."""
        inside = ["unshare", "--uts", "sh", "-c", ENTER, self.names[number], str(self.resolved[number]), *command]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            ["ip", "netns", "exec", self._spaces[number], *inside], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
        )

    def cut(self, number: int) -> None:
        """Pull the cable of a host."""
        run("ip", "-n", self._relay, "link", "set", f"port{number}", "down")

    def mend(self, number: int) -> None:
        """Plug the cable of a host in again."""
        run("ip", "-n", self._relay, "link", "set", f"port{number}", "up")

    def lose(self, number: int, share: float) -> None:
        """Lose a part of all packets that arrive at a host, drawn at random."""
        match = ["-m", "statistic", "--mode", "random", "--probability", str(share)]
        run("ip", "netns", "exec", self._spaces[number], "iptables", "-A", "INPUT", "-i", "eth0", *match, "-j", "DROP")

    def n_lost(self, number: int) -> int:
        """Return how many packets a host has lost by ``lose``."""
        listed = run("ip", "netns", "exec", self._spaces[number], "iptables", "-L", "INPUT", "-v", "-x", "-n")
        return sum(int(line.split()[0]) for line in listed.splitlines() if "DROP" in line and "statistic" in line)

    def set_tcp_retries(self, n: int) -> None:
        """Set how often a connection repeats what is not acknowledged before it fails: 15 times by default, which takes 15 minutes."""
        for space in self._spaces:
            run("ip", "netns", "exec", space, "sh", "-c", f"echo {n} > /proc/sys/net/ipv4/tcp_retries2")

    def processes(self) -> list[str]:
        """Return the command of each process on a host."""
        pids = [pid for space in self._spaces for pid in run("ip", "netns", "pids", space).split()]
        return [line for pid in pids if (line := _command(pid))]


@contextmanager
def create_hosts(n: int, folder: Path, seconds: float = 0.0) -> Iterator[Hosts]:
    """Create hosts whose messages take ``seconds`` from one to another; afterwards kill what runs there, and remove them."""
    for space in run("ip", "netns", "list").split():
        if space.startswith(PREFIX) and not Path("/proc", space.removeprefix(PREFIX).split("-")[0]).exists():
            _remove(space)  # of a test that was killed
    hosts = Hosts(n, folder, seconds)
    with ExitStack() as stack:
        stack.callback(lambda: [_remove(space) for space in hosts.spaces if Path("/run/netns", space).exists()])
        relay = hosts.connect()
        stack.enter_context(relay)
        stack.callback(relay.kill)
        yield hosts


def _remove(space: str) -> None:
    for pid in run("ip", "netns", "pids", space).split():
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(int(pid), signal.SIGKILL)
    run("ip", "netns", "del", space)


def _command(pid: str) -> str:
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""

"""The network namespaces and links of scripts/hosts."""
import json
import os
import shutil
import subprocess
import tempfile

FOLDER = "/run/netns"
SHARED_MEMORY = "/dev/shm"
TEMPORARY = f"{SHARED_MEMORY}/tmp"
SWITCH = "switch"


class CannotMakeHosts(Exception):
    """Says what this machine lacks or refuses."""


def run(*command):
    """Runs a command that must succeed; returns its output."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotMakeHosts(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        words = done.stderr.split("\n")[0] or f"exit status {done.returncode}"
        raise CannotMakeHosts(f"{' '.join(command)}: {words}")
    return done.stdout


def make_room():
    """Gives this process's mount namespace private folders for the names of
    namespaces, for shared memory and for temporary files."""
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "proc", "proc", "/proc")
    if not os.path.isdir(FOLDER):
        # Without the tmpfs the folder would stay, and only root could make it.
        run("mount", "-t", "tmpfs", "tmpfs", os.path.dirname(FOLDER))
        os.makedirs(FOLDER)
    run("mount", "-t", "tmpfs", "tmpfs", FOLDER)
    # Hosts of two runs have the same names and process numbers, of which Open MPI
    # makes the names of its files.
    run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", SHARED_MEMORY)
    os.mkdir(TEMPORARY)
    os.chmod(TEMPORARY, 0o1777)
    os.environ["TMPDIR"] = TEMPORARY


def address_of(host):
    return f"10.77.0.{host + 1}"


class Hosts:
    """The hosts "host0", "host1", … The bridge has its own namespace, where host
    i's link ends at the port "porti"."""

    def __init__(self, count):
        self.count = count

    def create(self, rate, delay):
        for tool in ("ip", "tc"):
            if not shutil.which(tool):
                raise CannotMakeHosts(f"{tool} is missing; install iproute2")
        self._let_names_be_found()
        run("ip", "netns", "add", SWITCH)
        on_switch("link", "add", "bridge", "type", "bridge")
        on_switch("link", "set", "bridge", "up")
        for host in range(self.count):
            add_host(host)
            # Each end limits what it sends: one end is the host's upload, the
            # other its download.
            if delay:
                slow_down(f"host{host}", "eth0", delay)
            if rate:
                limit(f"host{host}", "eth0", rate,
                      "parent 1:1" if delay else "root")
                limit(SWITCH, f"port{host}", rate, "root")

    def _let_names_be_found(self):
        with tempfile.NamedTemporaryFile("w", prefix="hosts-") as names:
            names.write("127.0.0.1 localhost\n")
            for host in range(self.count):
                names.write(f"{address_of(host)} host{host}\n")
            names.flush()
            # The mount stays valid after the file's name is removed.
            run("mount", "--bind", names.name, "/etc/hosts")

    def command_on(self, host, command):
        """The command line that runs `command` on `host`."""
        return ["ip", "netns", "exec", f"host{host}", "unshare", "--uts", "sh",
                "-c", 'hostname "$0" && exec "$@"', f"host{host}", *command]

    def environment(self):
        return {
            **os.environ,
            "LOCKSTEP_HOSTS": str(self.count),
            "HOST_ADDRESSES": ",".join(
                address_of(h) for h in range(self.count)),
        }

    def environment_of(self, host):
        return {
            **self.environment(),
            "HOST_INDEX": str(host),
            "HOST_ADDRESS": address_of(host),
        }

    def traffic(self):
        """Bytes on each host's link, as the host's end counts them."""
        return [
            {"host": host,
             "sent": link["stats64"]["tx"]["bytes"],
             "received": link["stats64"]["rx"]["bytes"]}
            for host in range(self.count)
            for link in json.loads(run("ip", "-n", f"host{host}", "-s", "-j",
                                       "link", "show", "eth0"))
        ]


def on_switch(*words):
    return run("ip", "-n", SWITCH, *words)


def add_host(host):
    run("ip", "netns", "add", f"host{host}")
    on_switch("link", "add", f"port{host}", "type", "veth", "peer", "name",
              "eth0", "netns", f"host{host}")
    on_switch("link", "set", f"port{host}", "master", "bridge", "up")
    for words in (("addr", "add", f"{address_of(host)}/24", "dev", "eth0"),
                  ("link", "set", "eth0", "up"),
                  ("link", "set", "lo", "up")):
        run("ip", "-n", f"host{host}", *words)


def cut(host):
    """Takes the link down; both ends see that."""
    on_switch("link", "set", f"port{host}", "down")


def mute(host):
    """Keeps the link up, and drops all packets on it."""
    on_switch("link", "set", f"port{host}", "nomaster")


def mend(host):
    on_switch("link", "set", f"port{host}", "master", "bridge", "up")


def slow_down(namespace, interface, delay):
    try:
        run("tc", "-n", namespace, "qdisc", "add", "dev", interface, "root",
            "handle", "1:", "netem", "limit", "100000", "delay", delay)
    except CannotMakeHosts as error:
        raise CannotMakeHosts(
            f"--delay needs the kernel's netem, which is missing ({error})"
        ) from error


def limit(namespace, interface, rate, place):
    # The bucket holds a few of the largest packets; a larger one would let bursts
    # pass. The queue is short, so that it does not add to the link's delay.
    run("tc", "-n", namespace, "qdisc", "add", "dev", interface,
        *place.split(), "tbf", "rate", rate, "burst", "256kb",
        "latency", "20ms")

"""An sshd on each host of scripts/hosts, and clients that may log in there."""
import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


CANNOT = 77  # the exit code of a test that the machine cannot run


def may_become_any_user():
    """Whether this is root, and not a user of its own namespace alone."""
    users = Path("/proc/self/uid_map").read_text().split()
    return os.geteuid() == 0 and int(users[2]) > 1


class SshServers(contextlib.ExitStack):
    """`hosts` is the program scripts/hosts; host i answers to names[i]."""

    def __init__(self, hosts, names):
        super().__init__()
        self.hosts, self.names = hosts, names
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory()))
        for key in ("host_key", "user_key", "strangers_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "",
                            "-f", str(self.folder / key)], check=True)
        key = (self.folder / "host_key.pub").read_text()
        shutil.copy(self.folder / "user_key.pub", self.folder / "authorized_keys")
        (self.folder / "known_hosts").write_text(f"{','.join(names)} {key}")
        (self.folder / "sshd_config").write_text(
            f"HostKey {self.folder}/host_key\n"
            f"AuthorizedKeysFile {self.folder}/authorized_keys\n"
            "StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n")
        for host in range(len(names)):
            self.start_sshd(host)

    def start_sshd(self, host):
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd demands it
        server = subprocess.Popen(
            [self.hosts, "exec", str(host), "--", "sh", "-c",
             'hostname "$0" && exec "$@"', self.names[host],
             shutil.which("sshd") or "/usr/sbin/sshd", "-D", "-e", "-f",
             str(self.folder / "sshd_config")],
            stderr=subprocess.PIPE, text=True)
        self.callback(server.stderr.close)
        self.callback(server.wait)
        self.callback(server.terminate)
        for line in server.stderr:
            if "listening" in line:
                return
        raise RuntimeError(f"the sshd of host {host} ended")

    def client(self, key="user_key", known="known_hosts"):
        """An ssh command with these settings."""
        settings = self.folder / f"{key}-{known}"
        settings.write_text(
            f"IdentityFile {self.folder}/{key}\nIdentitiesOnly yes\n"
            f"UserKnownHostsFile {self.folder}/{known}\n")
        return f"{shutil.which('ssh')} -F {settings}"

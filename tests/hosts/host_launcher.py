"""The launchers of `lockstep run` on the hosts of scripts/hosts, one per host."""
import ctypes
import os
import re
import select
import signal
import struct
import subprocess
import threading
from pathlib import Path

PORT = 29400  # of the rendezvous
# The errors with which a launcher may end: docs/design/launch.md.
PROMISED = [r"the launcher that serves the rendezvous at \S+ is gone: it ended, or "
            r"the link to its host is down\n  next: +start the job again on every "
            r"host(, or on this one if the others go on)?; here it was\n +lockstep run ",
            r"the job goes on without this host: all its ranks have died, or its "
            r"connection to the rendezvous at \S+ was lost for a while\n  next: +"
            r"start it here again"]
# From sys/inotify.h.
IN_CREATE = 0x100
EVENT = struct.Struct("iIII")


class Launcher:
    """The launcher of one host; its output is kept."""

    def __init__(self, hosts, host, command, environment):
        self.host = host
        self.output = ""
        # The process becomes the launcher: exec replaces the script.
        self.process = subprocess.Popen(
            [hosts, "exec", str(host), "--", *command], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **environment})
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.output += line

    def signal(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def ranks(self):
        pid = self.process.pid
        try:
            # Before the launcher the process is a shell, which has children too.
            if Path(f"/proc/{pid}/exe").readlink().name != "lockstep":
                return []
            return [int(child) for child in
                    Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []

    def has_socket(self, place, state):
        """Whether its host has a TCP socket in this state (net/tcp_states.h), at
        the rendezvous' port. `place`: 1 the port is the host's own, 2 the other
        end's."""
        for table in ("tcp", "tcp6"):
            try:
                lines = Path(f"/proc/{self.process.pid}/net/{table}").read_text()
            except OSError:
                continue
            for line in lines.splitlines()[1:]:
                words = line.split()
                if words[place].endswith(f":{PORT:04X}") and words[3] == state:
                    return True
        return False

    def serves(self):
        return self.has_socket(1, "0A")

    def has_come(self):
        return self.has_socket(2, "01")

    def end(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()

    def check_end(self):
        """An error is one that the documents promise; a killed launcher has none,
        and the round asks the last one of host 1 to end."""
        code = self.process.poll()
        if code in (0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM):
            return
        assert any(re.search(each, self.output) for each in PROMISED), (
            f"the launcher of host {self.host} ended with {code} and an error that "
            "no document promises")


class NewFiles:
    """The names that appear in a folder."""

    def __init__(self, folder):
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_CLOEXEC)
        watch = libc.inotify_add_watch(self._descriptor, str(folder).encode(),
                                       IN_CREATE)
        if self._descriptor < 0 or watch < 0:
            raise OSError(ctypes.get_errno(), "inotify")

    def next(self, seconds):
        """The names that appear next; none if the time passes first."""
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return []
        events, names = os.read(self._descriptor, 1 << 16), []
        while events:
            length = EVENT.unpack_from(events)[3]
            name, events = (events[EVENT.size:EVENT.size + length],
                            events[EVENT.size + length:])
            names.append(name.rstrip(b"\0").decode())
        return names

    def close(self):
        os.close(self._descriptor)


def run(*command):
    subprocess.run(command, check=True)


def pids_on(host):
    done = subprocess.run(["ip", "netns", "pids", f"host{host}"], check=True,
                          capture_output=True, text=True)
    return [int(pid) for pid in done.stdout.split()]


def signal_all(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

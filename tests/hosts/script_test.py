"""The behaviour of scripts/hosts, and that it leaves nothing behind.

    script_test.py HOSTS
"""
import os
import select
import signal
import subprocess
import sys
import unittest
from pathlib import Path

HOSTS = sys.argv[1]
CANNOT = 77
PATIENCE_SECONDS = 60
# Prints its network namespace, and stays for the whole test.
HOLD = ["sh", "-c", "sleep 1000 & readlink /proc/self/ns/net; wait"]


def hosts(*words):
    return subprocess.run([HOSTS, *words], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False,
                          timeout=PATIENCE_SECONDS)


def inhabitants(namespace):
    """Descriptors of the processes in a network namespace, to wait for their
    end."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "ns/net") == namespace:
                found.append(os.pidfd_open(int(process.name)))
        except OSError:
            continue  # it has ended, or belongs to another user
    return found


def machine():
    """Where hosts could leave something behind: interfaces, mounts, names."""
    names = Path("/run/netns")
    return (sorted(os.listdir("/sys/class/net")),
            Path("/proc/self/mounts").read_text(encoding="utf-8"),
            sorted(os.listdir(names)) if names.exists() else None)


class Script(unittest.TestCase):
    def setUp(self):
        self.before = machine()
        self.addCleanup(lambda: self.assertEqual(machine(), self.before))

    def start(self, *words):
        process = subprocess.Popen(
            [HOSTS, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_runs_a_command_on_each_host_and_tags_what_it_says(self):
        done = hosts("2", "--", "sh", "-c",
                     "echo $(hostname) $HOST_INDEX of $LOCKSTEP_HOSTS;"
                     "cat /sys/class/net/eth0/operstate")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), [
            "[host 0] host0 0 of 2", "[host 0] up",
            "[host 1] host1 1 of 2", "[host 1] up"])

    def test_ends_as_the_first_command_that_failed(self):
        done = hosts("3", "--", "sh", "-c", "exit $((HOST_INDEX * 3))")
        self.assertIn(done.returncode, (3, 6))

    def test_a_host_reaches_another_by_name_until_it_is_cut_off(self):
        # The first contact needs the link, because no neighbour entry exists yet.
        script = f"""
            listen() {{ {HOSTS} exec 1 -- {sys.executable} -c '
import socket
server = socket.create_server(("", 7000))
print("listening", flush=True)
while True:
    server.accept()[0].close()
'; }}
            listen | {{
                read -r line
                call() {{ {HOSTS} exec 0 -- {sys.executable} -c '
import socket
socket.create_connection(("host1", 7000), timeout=0.3)
'; }}
                call && echo first
                for verb in cut mute; do
                    {HOSTS} $verb 1 && {{ call 2>&- || echo $verb; }}
                    {HOSTS} mend 1 && call && echo mended
                done
            }}
            """
        process = self.start("2", "--once", "--", "bash", "-c", script)
        said = [process.stdout.readline().strip() for _ in range(5)]
        self.assertEqual(said, ["first", "cut", "mended", "mute", "mended"])

    def test_limits_both_directions_of_a_link(self):
        done = hosts("1", "--rate", "100mbit", "--once", "--", "sh", "-c",
                     "tc -n host0 qdisc show dev eth0; "
                     "tc -n switch qdisc show dev port0")
        self.assertEqual(done.stdout.count("rate 100Mbit"), 2, done)

    # Open MPI names its files there by the host and the process number, which
    # two runs have in common.
    def test_gives_each_run_its_own_temporary_files_and_shared_memory(self):
        name = f"taken-{os.getpid()}"
        script = f"""
            python3 -c 'import tempfile; print(tempfile.gettempdir())'
            for folder in "$TMPDIR" /dev/shm; do
                [ ! -e "$folder/{name}" ] && touch "$folder/{name}" && echo free
            done
            """
        first = self.start("1", "--once", "--", "sh", "-c",
                           f"{script} exec sleep 1000")
        said = [first.stdout.readline().strip() for _ in range(3)]
        self.assertEqual(said, ["/dev/shm/tmp", "free", "free"])
        second = hosts("1", "--once", "--", "sh", "-c", script)
        self.assertEqual(second.stdout.split(), said, second.stderr)
        self.assertFalse(Path("/dev/shm", name).exists())

    def test_leaves_nothing_however_it_ends(self):
        for number, code in ((signal.SIGKILL, -signal.SIGKILL),
                             (signal.SIGINT, 128 + signal.SIGINT),
                             (signal.SIGTERM, 128 + signal.SIGTERM)):
            for words in (["2", "--", *HOLD],
                          ["2", "--once", "--", HOSTS, "exec", "0", "--", *HOLD]):
                with self.subTest(signal=number, words=words):
                    process = self.start(*words)
                    namespace = process.stdout.readline().split()[-1]
                    processes = inhabitants(namespace)
                    self.assertTrue(processes, namespace)
                    process.send_signal(number)
                    self.assertEqual(process.wait(PATIENCE_SECONDS), code)
                    for held in processes:
                        ended, _, _ = select.select([held], [], [],
                                                    PATIENCE_SECONDS)
                        self.assertTrue(ended)
                        os.close(held)
                    self.assertFalse(inhabitants(namespace))

    def test_says_why_hosts_cannot_be_made(self):
        done = subprocess.run(
            ["setpriv", "--bounding-set=-all", "--inh-caps=-all", HOSTS, "2",
             "--", "true"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, CANNOT)
        self.assertRegex(done.stderr, r"^hosts: cannot be made here: .+\n$")

    def test_refuses_what_is_no_rate_or_number_of_hosts(self):
        for words in (["0", "--", "true"], ["2", "--rate", "fast", "--", "true"],
                      ["2", "--delay", "5", "--", "true"], ["2"]):
            self.assertEqual(hosts(*words).returncode, 2, words)
        self.assertIn("--once", hosts("cut", "1").stderr)


def main():
    first = hosts("1", "--", "true")
    if first.returncode == CANNOT:
        print(first.stderr, end="")
        sys.exit(CANNOT)
    unittest.main(argv=sys.argv[:1], verbosity=2)


main()

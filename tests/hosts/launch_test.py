"""A job that `lockstep run` starts on two hosts meets faults at random moments:
killed ranks and launchers, stopped launchers, links that go and come back. It
ends with the bytes of a run without faults, and leaves no process.

    scripts/hosts 2 --once -- launch_test.py HOSTS LOCKSTEP ROUNDS [SEED]

The job trains with checkpoints and --resume auto. Where a fault ends a launcher,
the test does what its error says: it runs the same command again.
"""
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HOSTS, LOCKSTEP, ROUNDS = sys.argv[1], sys.argv[2], int(sys.argv[3])
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(1 << 31)
# Far beyond the usual time; these limits only keep a failing test from hanging.
PATIENCE_SECONDS = 240
MOST_STARTS = 12
TRAIN = ["train", "--model", "mlp", "--epochs", "1", "--global-batch-size", "512",
         "--logical-shards", "2", "--threads", "1", "--no-hints"]


class Launcher:
    """The launcher of one host; its output is kept."""

    def __init__(self, host, folder):
        endpoint = os.environ["HOST_ADDRESSES"].split(",")[0]
        self.host = host
        self.output = ""
        # The process becomes the launcher: exec replaces the script.
        self.process = subprocess.Popen(
            [HOSTS, "exec", str(host), "--", LOCKSTEP, "run", "-n", "1",
             "--nnodes", "1:2", "--rdzv-endpoint", f"{endpoint}:29400",
             "--rdzv-conf", "last_call_timeout=1", "--max-restarts", "20",
             "--grace", "1", LOCKSTEP, *TRAIN,
             "--checkpoint-dir", str(folder / "checkpoints"),
             "--checkpoint-every", "10", "--resume", "auto",
             "--output", str(folder / "model.safetensors")],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
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
            return [int(child) for child in
                    Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []

    def end(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()


def change_link(verb, host):
    subprocess.run([HOSTS, verb, str(host)], check=True)


class Round:
    def __init__(self, folder, chance):
        self.folder, self.chance = folder, chance
        self.pause = threading.Event()
        self.met = False  # a fault before the job was over
        self.all = []  # launchers, those that have ended too
        self.hosts = [self.start(0), self.start(1)]

    def start(self, host):
        self.all.append(Launcher(host, self.folder))
        return self.all[-1]

    def kill_rank(self):
        ranks = self.chance.choice(self.hosts).ranks()
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)

    def kill_launcher(self):
        self.hosts[1].signal(signal.SIGKILL)

    def kill_server(self):
        self.hosts[0].signal(signal.SIGKILL)

    def stop_launcher(self):
        launcher = self.chance.choice(self.hosts)
        launcher.signal(signal.SIGSTOP)
        self.pause.wait(self.chance.uniform(0, 2))
        launcher.signal(signal.SIGCONT)

    def cut_for_a_moment(self):
        self.cut_for(self.chance.uniform(0, 1))

    def cut(self):
        self.cut_for(20)

    def cut_for(self, seconds):
        verb = self.chance.choice(["cut", "mute"])
        change_link(verb, 1)
        self.pause.wait(seconds)
        change_link("mend", 1)

    FAULTS = [kill_rank, kill_launcher, kill_server, stop_launcher,
              cut_for_a_moment, cut]

    def is_over(self):
        return self.hosts[0].process.poll() == 0

    def run(self, fault, moment):
        """Returns how often launchers were started."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        self.pause.wait(moment)
        self.met = not self.is_over()
        if self.met:
            fault(self)
        while not self.is_over():
            assert time.monotonic() < deadline, "the job does not end"
            assert len(self.all) < MOST_STARTS, "the job does not get on"
            for host, launcher in enumerate(self.hosts):
                if launcher.process.poll() not in (None, 0):
                    self.hosts[host] = self.start(host)
            self.pause.wait(0.05)
        # A launcher that came too late for this job would wait for the next.
        self.hosts[1].signal(signal.SIGTERM)
        for launcher in self.hosts:
            launcher.process.wait(PATIENCE_SECONDS)
        for host in (0, 1):
            left = subprocess.run(["ip", "netns", "pids", f"host{host}"],
                                  check=True, capture_output=True, text=True)
            assert left.stdout == "", f"processes are left on host {host}"
        return len(self.all)

    def end(self):
        for launcher in self.all:
            launcher.end()

    def print(self):
        for launcher in self.all:
            print(f"--- host {launcher.host} ended with "
                  f"{launcher.process.poll()}:\n{launcher.output}")


def undisturbed(folder):
    """The bytes of the model, and the seconds that training takes."""
    started = time.monotonic()
    model = folder / "model.safetensors"
    subprocess.run([LOCKSTEP, *TRAIN, "--ranks", "1", "--output", str(model)],
                   check=True, stdout=subprocess.DEVNULL)
    return model.read_bytes(), time.monotonic() - started


def main():
    print(f"faults of a job on two hosts: seed {SEED}", flush=True)
    chance = random.Random(SEED)
    faults, met = [], 0
    with tempfile.TemporaryDirectory() as name:
        right, seconds = undisturbed(Path(name))
    for number in range(ROUNDS):
        if not faults:
            faults = chance.sample(Round.FAULTS, len(Round.FAULTS))
        fault, moment = faults.pop(), chance.uniform(0, 2 * seconds)
        with tempfile.TemporaryDirectory() as name:
            round_ = Round(Path(name), chance)
            try:
                starts = round_.run(fault, moment)
                model = Path(name, "model.safetensors").read_bytes()
                assert model == right, "the model differs"
            except BaseException:
                round_.end()
                round_.print()
                print(f"FAILED in round {number}: {fault.__name__} after "
                      f"{moment:.2f} s")
                raise
            round_.end()
        met += round_.met
        print(f"round {number}: {fault.__name__} after {moment:.2f} s"
              f"{'' if round_.met else ', too late'}; launchers started: {starts}",
              flush=True)
    print(f"{ROUNDS} rounds, {met} with a fault; the model had the same bytes after each")


main()

"""Runs each command of the guides that start jobs, as it stands there.

    scripts/hosts 2 --once -- guide_commands_test.py HOSTS BUILD PYTHON

The hosts are called node-a and node-b, as in the guides. They have an sshd, and a
Slurm of their own. `./program` and the other programs are examples; Fashion-MNIST
is replaced by a few of its images, so that training takes seconds.

A command is an indented line that begins with one of STARTS. In a block that begins
with "$ " the other lines are what the command prints: all must come, in any order,
with any numbers; "…" stands for lines that the guide leaves out.
"""
import contextlib
import gzip
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from slurm import Slurm
from ssh_servers import SshServers

# Absolute, since the commands run in a folder of their own.
HOSTS, BUILD, PYTHON = map(os.path.abspath, sys.argv[1:4])
REPOSITORY = Path(__file__).resolve().parents[2]
GUIDES = ("launchers", "slurm", "elastic", "errors")
NODES = ("node-a", "node-b")
STARTS = re.compile(r"(lockstep|torchrun|mpirun(\.mpich)?|srun|sbatch|scancel|export|"
                    r"kill|[A-Z_]+=\S+) ")
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
# Far beyond the usual time; this only keeps a failing test from hanging.
PATIENCE_SECONDS = 240


class Guide:
    """The commands of a guide, what they print, and its scripts."""

    def __init__(self, name):
        text = (REPOSITORY / f"docs/guides/{name}.md").read_text(encoding="utf-8")
        self.scripts = re.findall(r"^```sh\n(.*?)^```$", text, re.S | re.M)
        text = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
        self.commands = {}
        for block in re.findall(r"(?:^    .*\n)+", text, re.M):
            self.read(re.sub(r"^    ", "", block, flags=re.M))

    def read(self, block):
        if block.startswith("$ "):
            command, *lines = block[2:].splitlines()
            self.commands[command] = [line for line in lines if line != "…"]
            return
        for line in block.replace("\\\n", " ").splitlines():
            if STARTS.match(line):
                command = re.sub(r"\s{2,}# .*", "", line)
                self.commands[" ".join(command.split())] = []


def pattern_of(line):
    """What a printed line must match: numbers, names of temporary folders and the
    time of day differ."""
    line = re.sub(r"(\\ )+", r"\\s+", re.escape(line.rstrip()))
    line = re.sub(r"/tmp/lockstep\\-records\\-\w+", r"\\S+/lockstep-records-\\w+", line)
    return re.sub(r"\d+", r"\\d+", line)


def write_images(folder, images):
    """The first images of each file of Fashion-MNIST."""
    folder.mkdir()
    for file in FASHION_MNIST.glob("*.gz"):
        header, size = (16, 784) if "idx3" in file.name else (8, 1)
        data = bytearray(gzip.decompress(file.read_bytes())[:header + images * size])
        data[4:8] = images.to_bytes(4, "big")
        (folder / file.name).write_bytes(gzip.compress(bytes(data)))


class Nodes(contextlib.ExitStack):
    """Two hosts on which a user may type the guides' commands."""

    def __init__(self):
        super().__init__()
        self.home = Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.work = self.home / "work"
        self.work.mkdir()
        self.addresses = dict(zip(NODES, os.environ["HOST_ADDRESSES"].split(",")))
        with open("/etc/hosts", "a", encoding="ascii") as names:
            for node, address in self.addresses.items():
                names.write(f"{address} {node}\n")
        self.bring_programs()
        self.bring_few_images()
        self.environment = self.environment_of_a_user()
        ssh = self.enter_context(SshServers(HOSTS, NODES)).client()
        self.add_tool("ssh", f'exec {ssh} "$@"')
        self.slurm = self.enter_context(Slurm(self.start, self.addresses))
        self.environment["SLURM_CONF"] = str(self.slurm.conf)

    def bring_programs(self):
        examples = Path(BUILD, "examples")
        for name, target in (("program", examples / "reductions"),
                             ("errors", examples / "errors"),
                             ("elastic", examples / "elastic"),
                             ("train.py", REPOSITORY / "examples/quickstart.py")):
            (self.work / name).symlink_to(target)
        (self.work / "hosts").write_text(
            "".join(f"{node} slots=4\n" for node in NODES))

    def bring_few_images(self):
        """In the mount namespace of scripts/hosts."""
        write_images(self.home / "few", 640)
        write_images(self.home / "many", 6400)
        self.images = self.home / "images"
        shutil.copytree(self.home / "few", self.images)
        subprocess.run(["mount", "--bind", self.images, FASHION_MNIST], check=True)

    @contextlib.contextmanager
    def many_images(self):
        """Training takes some seconds then."""
        shutil.copytree(self.home / "many", self.images, dirs_exist_ok=True)
        yield
        shutil.copytree(self.home / "few", self.images, dirs_exist_ok=True)

    def environment_of_a_user(self):
        kept = {name: value for name, value in os.environ.items()
                if name == "LOCKSTEP_HOSTS"
                or not name.startswith(("LOCKSTEP_", "OMP_"))}
        path = [self.home / "bin", Path(BUILD, "bin"), Path(PYTHON).parent,
                kept["PATH"], "/usr/sbin"]
        return kept | {
            "PATH": ":".join(map(str, path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            # Open MPI's mpirun refuses root, and more ranks than cores.
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
        }

    def add_tool(self, name, script):
        tools = self.home / "bin"
        tools.mkdir(exist_ok=True)
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)

    def start(self, node, command):
        """A process group that runs the command on a node."""
        return subprocess.Popen(
            [HOSTS, "exec", str(NODES.index(node)), "--", "sh", "-c",
             'hostname "$0" && exec "$@"', node, "bash", "-c", command],
            cwd=self.work, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True)

    def finish(self, process):
        """The exit code and what the process has printed."""
        try:
            out, _ = process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
            raise AssertionError(
                f"{process.args[-1]} does not end:\n{out}") from None
        return process.returncode, out

    def run(self, command, node=NODES[0]):
        return self.finish(self.start(node, command))

    def output(self, command):
        code, out = self.run(command)
        if code != 0:
            raise AssertionError(f"{command} exited with {code}:\n{out}")
        return out


def until(condition, what, of=lambda: ""):
    """Waits for a condition that another process brings about."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}:\n{of()}")
        time.sleep(0.05)
    return result


def end(process):
    """Ends a command that a failed test has left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def runs(*commands):
    """Marks the test that runs these commands of a guide."""
    def mark(test):
        test.commands = commands
        return test
    return mark


class Commands(unittest.TestCase):
    """A test names the commands of the guides that it runs, as they stand there."""

    @classmethod
    def setUpClass(cls):
        cls.nodes = cls.enterClassContext(Nodes())
        cls.guides = {name: Guide(name) for name in GUIDES}

    def test_each_command_of_the_guides_is_run_by_a_test(self):
        tests = [getattr(self, name) for name in dir(self) if name.startswith("test")]
        run = {command for test in tests for command in getattr(test, "commands", ())}
        there = {command for guide in self.guides.values()
                 for command in guide.commands}
        self.assertEqual(there - run, set(), "a test has to run these")
        self.assertEqual(run - there, set(), "no guide has these")

    def expect(self, command, *patterns, code=0):
        """Runs the command on the first node; its output has the patterns."""
        ended, out = self.nodes.run(command)
        self.assertEqual(ended, code, out)
        for pattern in patterns:
            self.assertRegex(out, pattern)
        return out

    def expect_as_shown(self, guide, command, code):
        ended, out = self.nodes.run(command)
        self.assertEqual(ended, code, out)
        self.compare(guide, command, out)
        return out

    def compare(self, guide, command, out):
        for line in self.guides[guide].commands[command]:
            self.assertRegex(out, "(?m)^" + pattern_of(line) + r"\s*$")

    def expect_on_both(self, first, second, *patterns):
        """The nodes run a command each, which belong to one job."""
        started = [self.nodes.start(node, command)
                   for node, command in zip(NODES, (first, second))]
        ended = [self.nodes.finish(process) for process in started]
        self.assertEqual([code for code, _ in ended], [0, 0], ended)
        for pattern in patterns:
            self.assertRegex("".join(out for _, out in ended), pattern)

    # One host.

    @runs("lockstep run -n 4 ./program --its-flag")
    def test_one_host(self):
        self.expect("lockstep run -n 4 ./program --its-flag",
                    r"\[rank 3\] all_reduce sum: +6 4")

    @runs("lockstep run -n 4 train.py")
    def test_a_pytorch_script(self):
        self.expect("lockstep run -n 4 train.py", "epoch 2: mean loss")

    # Several hosts.

    @runs("lockstep run -H node-a:4,node-b:4 ./program")
    def test_several_hosts_over_ssh(self):
        self.expect("lockstep run -H node-a:4,node-b:4 ./program",
                    r"\[rank 7\] all_reduce sum: +28 8")

    @runs("lockstep run --hostfile hosts ./program")
    def test_several_hosts_of_a_file(self):
        self.expect("lockstep run --hostfile hosts ./program",
                    r"\[rank 7\] all_reduce sum: +28 8")

    @runs("export LOCKSTEP_TOKEN=...",
          "lockstep run --nnodes 2 --rdzv-endpoint node-a:29400 -n 4 ./program")
    def test_a_command_per_host(self):
        command = ("export LOCKSTEP_TOKEN=...\n"
                   "lockstep run --nnodes 2 --rdzv-endpoint node-a:29400 -n 4 "
                   "./program")
        self.expect_on_both(command, command, r"all_reduce sum: +28 8")

    @runs("lockstep run --nnodes 1:2 --rdzv-endpoint node-a:29400 --max-restarts 20 "
          "-n 1 lockstep train --logical-shards 2 --checkpoint-dir runs/1 "
          "--checkpoint-every 10 --resume auto")
    def test_training_through_the_loss_of_hosts(self):
        command = ("lockstep run --nnodes 1:2 --rdzv-endpoint node-a:29400 "
                   "--max-restarts 20 -n 1 lockstep train --logical-shards 2 "
                   "--checkpoint-dir runs/1 --checkpoint-every 10 --resume auto")
        self.forget_runs()
        self.expect_on_both(command, command, "test accuracy|accuracy")

    def forget_runs(self):
        shutil.rmtree(self.nodes.work / "runs", ignore_errors=True)

    # Before the first job, and while one runs.

    @runs("lockstep doctor", "lockstep doctor --host-only")
    def test_the_doctor_of_a_host(self):
        self.expect("lockstep doctor", "Training on this host works")
        self.expect("WORLD_SIZE=2 RANK=0 lockstep doctor --host-only",
                    "Training on this host works")

    @runs("lockstep run -H node-a,node-b lockstep doctor")
    def test_the_doctor_of_several_hosts(self):
        self.expect("lockstep run -H node-a,node-b lockstep doctor",
                    "node-a", "node-b")

    @runs("lockstep status", "kill -USR1 4711")
    def test_a_job_that_hangs(self):
        job = self.nodes.start(NODES[0], "exec lockstep run -n 3 ./errors hang")
        self.addCleanup(end, job)
        shown = [pattern_of(line) for line in
                 self.guides["errors"].commands["lockstep status"]]
        until(lambda: all(re.search(f"(?m)^{line}\\s*$",
                                    self.nodes.output("lockstep status"))
                          for line in shown),
              "the status", lambda: self.nodes.output("lockstep status"))
        number = re.search(r"job (\d+) ", self.nodes.output("lockstep status"))[1]
        # A rank counts as waiting once it has waited for a second.
        out = until(lambda: self.blame(job, number), "a rank that is blamed")
        self.assertIn("Rank 1 of 3 did not come to all_reduce #3", out)
        self.nodes.output(f"kill {number}")
        self.assertEqual(self.nodes.finish(job)[0], 128 + signal.SIGTERM)

    def blame(self, job, number):
        """What the records of the running job show; nothing where they do not."""
        self.nodes.output(f"kill -USR1 {number}")
        folder = next(found[1] for line in job.stdout
                      if (found := re.search(r"next: lockstep blame (\S+)", line)))
        code, out = self.nodes.run(f"lockstep blame {folder}")
        return out if code == 0 else ""

    # Under other launchers.

    def expect_training(self, command, before="", ranks=2):
        self.expect(before + command, f"{ranks} ranks", "accuracy")

    @runs("torchrun --nproc-per-node 2 --no-python lockstep train --epochs 5")
    def test_torchrun(self):
        self.expect_training("torchrun --nproc-per-node 2 --no-python "
                             "lockstep train --epochs 5")

    @runs("mpirun -n 2 lockstep train --epochs 5")
    def test_mpirun_of_open_mpi(self):
        self.expect_training("mpirun -n 2 lockstep train --epochs 5")

    @runs("lockstep run -n 2 lockstep train --epochs 5")
    def test_lockstep_run(self):
        self.expect_training("lockstep run -n 2 lockstep train --epochs 5")

    @runs("RANK=0 WORLD_SIZE=2 MASTER_ADDR=node-a MASTER_PORT=29500 lockstep train")
    def test_variables_alone(self):
        command = ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=node-a MASTER_PORT=29500 "
                   "lockstep train")
        self.expect_on_both(command, command.replace("RANK=0", "RANK=1"), "accuracy")

    # Slurm.

    def srun(self, command, *patterns):
        until(lambda: "idle" in self.nodes.run("sinfo -h -o %T")[1],
              "Slurm's nodes", self.nodes.slurm.log)
        return self.expect(command, *patterns)

    @runs("srun -n 8 lockstep train --epochs 5")
    def test_srun(self):
        self.srun("srun -n 8 lockstep train --epochs 5", "8 ranks", "accuracy")

    @runs("srun --nodes 2 --ntasks-per-node 2 ./program",
          "srun --nodes 2 --ntasks-per-node 2 lockstep train --epochs 5")
    def test_srun_of_two_nodes(self):
        self.srun("srun --nodes 2 --ntasks-per-node 2 ./program",
                  r"all_reduce sum: +6 4")
        self.srun("srun --nodes 2 --ntasks-per-node 2 lockstep train --epochs 5",
                  "4 ranks", "accuracy")

    def submit(self, command, script):
        """Submits the guide's script; returns the number of the job, and a function
        that reads its output."""
        name = command.split()[-1]
        (self.nodes.work / name).write_text(script)
        until(lambda: "idle" in self.nodes.run("sinfo -h -o %T")[1],
              "Slurm's nodes", self.nodes.slurm.log)
        job = re.search(r"\d+", self.nodes.output(command))[0]
        log = self.nodes.work / f"slurm-{job}.out"
        return job, lambda: log.read_text() if log.exists() else ""

    def state_of(self, job):
        return re.search(r"JobState=(\w+)",
                         self.nodes.output(f"scontrol show job {job}"))[1]

    @runs("sbatch job.sh", "scancel --signal=TERM 1")
    def test_a_batch_job_that_is_preempted(self):
        self.forget_runs()
        self.enterContext(self.nodes.many_images())
        self.expect("lockstep train --logical-shards 2 --ranks 1 --output right")
        job, log = self.submit("sbatch job.sh", self.guides["slurm"].scripts[0])
        runs = self.nodes.work / "runs/1"
        until(lambda: list(runs.glob("checkpoint-*")), "a checkpoint", log)
        self.nodes.output(f"scancel --signal=TERM {job}")
        until(lambda: self.state_of(job) == "PENDING", "a job in the queue", log)
        # Slurm lets a job wait for two minutes that was put back.
        self.nodes.output(f"scontrol update JobId={job} StartTime=now")
        until(lambda: self.state_of(job) == "COMPLETED", "the end of the job", log)
        self.assertEqual((self.nodes.work / "right").read_bytes(),
                         (self.nodes.work / "convnet-fashion-mnist.safetensors").read_bytes())

    @runs("sbatch launchers.sh")
    def test_a_launcher_per_node_of_a_batch_job(self):
        job, log = self.submit("sbatch launchers.sh", self.guides["slurm"].scripts[1])
        until(lambda: self.state_of(job) == "COMPLETED", "the end of the job", log)
        self.assertRegex(log(), r"\[rank 3\] all_reduce sum: +6 4")

    # Elastic training.

    @runs("lockstep run -n 3 --in-place --min-ranks 2 ./elastic 55",
          "lockstep run -n 3 --in-place --max-restarts 1 ./elastic 55")
    def test_elastic_training(self):
        for flag in ("--min-ranks 2", "--max-restarts 1"):
            self.expect(f"lockstep run -n 3 --in-place {flag} ./elastic 55",
                        "rank 2 was killed by signal 9", "200 steps, in 2 groups")

    # Reading an error.

    @runs("lockstep run -n 3 ./errors exception", "lockstep run -n 3 ./errors crash",
          "lockstep run -n 3 ./errors killed", "lockstep run -n 3 ./errors mismatch",
          "lockstep run -n 3 ./errors leave")
    def test_errors_are_reported_as_shown(self):
        for word, code in (("exception", 134), ("crash", 139), ("killed", 137),
                           ("mismatch", 1), ("leave", 1)):
            with self.subTest(word):
                self.expect_as_shown("errors", f"lockstep run -n 3 ./errors {word}",
                                     code)

    @runs("LOCKSTEP_TIMEOUT=2 lockstep run -n 3 ./errors hang",
          "lockstep blame /tmp/lockstep-records-g1c5VK")
    def test_blame_names_the_rank_that_did_not_come(self):
        out = self.expect_as_shown(
            "errors", "LOCKSTEP_TIMEOUT=2 lockstep run -n 3 ./errors hang", 1)
        folder = re.search(r"lockstep blame (\S+)", out)[1]
        blamed = self.expect(f"lockstep blame {folder}")
        self.compare("errors", "lockstep blame /tmp/lockstep-records-g1c5VK", blamed)


unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)

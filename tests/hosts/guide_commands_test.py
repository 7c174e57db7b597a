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

import slurm
from ssh_servers import SshServers

HOSTS, BUILD, PYTHON = sys.argv[1:]
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
                self.commands[re.sub(r"\s{2,}# .*", "", line)] = []


def pattern_of(line):
    """What a printed line must match: numbers, names of temporary folders and the
    time of day differ."""
    line = re.escape(line.rstrip())
    line = re.sub(r"lockstep\\-records\\-\w+", r"lockstep-records-\\w+", line)
    return re.sub(r"\d+", r"\\d+", line)


def write_few_images(folder, images=640):
    """The first images of each file of Fashion-MNIST."""
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
        examples = Path(BUILD, "examples")
        for name, target in (("program", examples / "reductions"),
                             ("errors", examples / "errors"),
                             ("elastic", examples / "elastic"),
                             ("train.py", REPOSITORY / "examples/quickstart.py")):
            (self.work / name).symlink_to(target)
        (self.work / "hosts").write_text(
            "".join(f"{node} slots=4\n" for node in NODES))
        images = self.home / "images"
        images.mkdir()
        write_few_images(images)
        # In the mount namespace of scripts/hosts.
        subprocess.run(["mount", "--bind", images, FASHION_MNIST], check=True)
        addresses = os.environ["HOST_ADDRESSES"].split(",")
        with open("/etc/hosts", "a", encoding="ascii") as names:
            for node, address in zip(NODES, addresses):
                names.write(f"{address} {node}\n")
        self.environment = self.environment_of_a_user()
        self.let_ssh_work()

    def environment_of_a_user(self):
        tools = self.home / "bin"
        tools.mkdir()
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("LOCKSTEP_", "OMP_"))
                or name == "LOCKSTEP_HOSTS"}
        return kept | {
            "PATH": f"{tools}:{BUILD}/bin:{Path(PYTHON).parent}:{kept['PATH']}:/usr/sbin",
            "LOCKSTEP_PLUGIN_PATH": f"{BUILD}/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
            # mpirun refuses root, and more ranks than cores.
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
        }

    def let_ssh_work(self):
        servers = self.enter_context(SshServers(HOSTS, NODES))
        tool = self.home / "bin" / "ssh"
        tool.write_text(f'#!/bin/sh\nexec {shutil.which("ssh").replace("ssh", "ssh")} '
                        f'{" ".join(servers.client().split()[1:])} "$@"\n')
        tool.chmod(0o755)

    def start(self, node, command):
        """A process group that runs the command of a guide on a node."""
        return subprocess.Popen(
            [HOSTS, "exec", str(NODES.index(node)), "--", "sh", "-c",
             'hostname "$0" && exec "$@"', node, "bash", "-c", command],
            cwd=self.work, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True)


def finish(process):
    """The exit code and what the process has printed."""
    try:
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        raise AssertionError(f"{process.args[-1]} does not end:\n{out}") from None
    return process.returncode, out

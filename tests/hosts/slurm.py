"""A Slurm cluster on the hosts of scripts/hosts: slurmctld on the first, slurmd on
each. It asks for no proof of who calls, so it needs no munge, and nothing outside
the hosts reaches it.
"""
import contextlib
import shutil
import tempfile
from pathlib import Path

# More than the machine may have: ranks share the processors.
CPUS_PER_NODE = 8
CONF = """\
ClusterName=test
SlurmctldHost={first}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1
SlurmdParameters=config_overrides
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def tool(name):
    """Users' paths often lack the folder of daemons."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if not found:
        raise FileNotFoundError(f"{name} is missing: scripts/packages lists it")
    return found


class Slurm(contextlib.ExitStack):
    """`start(node, command)` starts a process on a node; `nodes` are their names
    and addresses."""

    def __init__(self, start, nodes):
        super().__init__()
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory()))
        (self.folder / "state").mkdir()
        first, address = next(iter(nodes.items()))
        lines = [f"NodeName={node} NodeAddr={address} CPUs={CPUS_PER_NODE} "
                 "State=UNKNOWN\n" for node, address in nodes.items()]
        self.conf = self.folder / "slurm.conf"
        self.conf.write_text(
            CONF.format(first=f"{first}({address})", folder=self.folder)
            .replace("PartitionName", "".join(lines) + "PartitionName"))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        daemons = [(first, f"{tool('slurmctld')} -D -f {self.conf}")]
        daemons += [(node, f"{tool('slurmd')} -D -f {self.conf} -N {node}")
                    for node in nodes]
        for node, command in daemons:
            self.end_later(start(node, f"exec {command} >>{self.folder}/log 2>&1"))

    def end_later(self, daemon):
        self.callback(daemon.stdout.close)
        self.callback(daemon.wait)
        self.callback(daemon.terminate)

    def log(self):
        return (self.folder / "log").read_text(errors="replace")

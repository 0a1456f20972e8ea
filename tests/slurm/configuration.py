"""The configuration files that make SLURM's daemons agree."""

from __future__ import annotations

import getpass
import os
import socket
import stat
from pathlib import Path

from tests.slurm.layout import ClusterSettings, Layout, node_names, save

ACCOUNT = "tests"
"""The one that the user is in."""


def write_configuration(layout: Layout, settings: ClusterSettings) -> None:
    """Make folders, key, devices and all files that the daemons read."""
    for name in ("etc", "run", "log", "state/controller", "state/dev", "state/munge"):
        (layout.folder / name).mkdir(parents=True, exist_ok=True)
    for node in node_names(settings):
        layout.spool(node).mkdir(parents=True, exist_ok=True)
    layout.key.parent.chmod(0o700)
    layout.key.touch(mode=0o600)
    layout.key.write_bytes(os.urandom(1024))
    etc = layout.slurm_conf.parent
    (etc / "gres.conf").write_text(_gres_conf(layout, settings))
    layout.slurm_conf.write_text(_slurm_conf(layout, settings))
    if settings.memory_cgroups:
        (etc / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nConstrainRAMSpace=yes\n"
        )
    if settings.accounting:
        _write_accounting(layout)
    save(layout, settings)


def _gres_conf(layout: Layout, settings: ClusterSettings) -> str:
    if not settings.gpus:
        return ""
    devices = layout.folder / "state" / "dev"
    for gpu in range(settings.gpus):
        path = devices / f"nvidia{gpu}"
        if not path.exists():
            _make_device(path)
    return f"NodeName=node[1-{settings.nodes}] Name=gpu File={devices}/nvidia[0-{settings.gpus - 1}]\n"


def _make_device(path: Path) -> None:
    """A second /dev/null. A plain file does where that is not allowed, but jobs are not told its number."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except OSError:
        path.touch()


def _slurm_conf(layout: Layout, settings: ClusterSettings) -> str:
    user, run, log = getpass.getuser(), layout.folder / "run", layout.folder / "log"
    gres = f"Gres=gpu:{settings.gpus}" if settings.gpus else ""
    node = f"CPUs={settings.cpus} RealMemory={settings.memory} {gres} State=UNKNOWN"
    nodes = (
        f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={layout.node_port(index)} {node}"
        for index, name in enumerate(node_names(settings), start=1)
    )
    lines = [
        f"""
ClusterName=tests
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={layout.controller_port}
FirstJobId={layout.first_job}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={layout.socket},cred_expire={settings.credential_seconds}
StateSaveLocation={layout.folder}/state/controller
SlurmdSpoolDir={layout.folder}/state/spool/%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd-%n.pid
SlurmctldLogFile={log}/slurmctld.log
SlurmdLogFile={log}/slurmd-%n.log
MailProg=/bin/true""",
        # no systemd; memory is watched by the kernel or by polling once a second
        f"""
ProctrackType=proctrack/linuxproc
TaskPlugin=task/{"cgroup" if settings.memory_cgroups else "none"}
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
{"JobAcctGatherParams=OverMemoryKill" if settings.over_memory_kill and not settings.memory_cgroups else ""}
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
ReturnToService=1
{_loopback()}""",
        # a chain of short jobs goes on within a second
        f"""
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=1,bf_interval=1,bf_continue
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
SlurmctldTimeout=10
SlurmdTimeout={settings.slurmd_timeout}
MessageTimeout=10
TCPTimeout=2
KillWait=2
CompleteWait=0
InactiveLimit=0
MinJobAge={settings.min_job_age}
MaxArraySize={settings.max_array_size}
MaxJobCount={settings.max_job_count}
DefMemPerCPU=100
{"GresTypes=gpu" if settings.gpus else ""}""",
        _accounting_lines(layout) if settings.accounting else "AccountingStorageType=accounting_storage/none",
        *nodes,
        "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF State=UP",
        "PartitionName=low Nodes=ALL MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE "
        f"GraceTime={settings.grace_time} State=UP",
        settings.extra,
    ]
    return "\n".join(lines) + "\n"


def _loopback() -> str:
    """Listen on the loopback only, which SLURM does where the machine's own name leads there."""
    try:
        own = socket.gethostbyname(socket.gethostname())
    except OSError:
        own = ""
    return "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny" if own.startswith("127.") else ""


def _accounting_lines(layout: Layout) -> str:
    """With associations enforced, an account that the user is not in is refused, as on a real cluster."""
    return f"""AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={layout.accounting_port}
AccountingStoragePass={layout.socket}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,qos"""


def _write_accounting(layout: Layout) -> None:
    user, etc, run, log = getpass.getuser(), layout.slurm_conf.parent, layout.folder / "run", layout.folder / "log"
    dbd = etc / "slurmdbd.conf"
    dbd.touch(mode=0o600)
    dbd.write_text(
        f"""DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={layout.accounting_port}
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={layout.socket}
LogFile={log}/slurmdbd.log
PidFile={run}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={layout.database_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=accounting
"""
    )
    (etc / "database.sql").write_text(
        "CREATE DATABASE IF NOT EXISTS accounting;\n"
        "CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';\n"
        "GRANT ALL ON accounting.* TO 'slurm'@'127.0.0.1';\n"
    )
    (etc / "associations").write_text(
        f"add cluster tests\nadd account {ACCOUNT}\nadd user {user} account={ACCOUNT}\nquit\n"
    )
    # nothing here must survive a power cut: no log, no sync
    (etc / "my.cnf").write_text(
        f"""[mysqld]
user={user}
datadir={layout.folder}/state/database
socket={run}/database.sock
pid-file={run}/mariadbd.pid
log-error={log}/mariadbd.log
init-file={etc}/database.sql
bind-address=127.0.0.1
port={layout.database_port}
skip-name-resolve
skip-log-bin
innodb_buffer_pool_size=64M
innodb_log_file_size=16M
innodb_flush_log_at_trx_commit=0
innodb_flush_method=nosync
innodb_doublewrite=0
innodb_lock_wait_timeout=900
performance_schema=OFF
max_allowed_packet=16M
"""
    )

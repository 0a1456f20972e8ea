"""sbatch's options: the letters, the ones without a value, and the ones that belong to slime-stages."""

from __future__ import annotations

LETTERS = {
    "A": "account",
    "a": "array",
    "B": "extra-node-info",
    "b": "begin",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "h": "help",
    "i": "input",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "S": "core-spec",
    "s": "oversubscribe",
    "t": "time",
    "v": "verbose",
    "V": "version",
    "W": "wait",
    "w": "nodelist",
    "x": "exclude",
}
"""The long name of each short form."""

BARE = frozenset(
    {
        "contiguous",
        "exclusive",
        "get-user-env",
        "help",
        "hold",
        "ignore-pbs",
        "no-kill",
        "no-requeue",
        "nice",
        "overcommit",
        "oversubscribe",
        "parsable",
        "propagate",
        "quiet",
        "reboot",
        "requeue",
        "spread-job",
        "test-only",
        "usage",
        "use-min-nodes",
        "verbose",
        "version",
        "wait",
    }
)
"""Options that take no value, or one with `=` only."""

_LOGS = "what jobs print lies in RUN/jobs; `slime-stages logs` shows it"
_NOT_FOR_JOBS = "type it with sbatch by hand"

OWNED = {
    "array": "every shard becomes a task; `--shard K` chooses one",
    "chdir": "type the command in the folder where the job is to start, or put a `cd` among the set-up lines",
    "clusters": "type the command on a login node of that cluster",
    "dependency": "a job waits for the stages before it",
    "error": _LOGS,
    "help": _NOT_FOR_JOBS,
    "job-name": "the jobs of a run share its name, and their comments say what each does",
    "kill-on-invalid-dep": "it is always on",
    "open-mode": "logs are always appended to",
    "output": _LOGS,
    "parsable": _NOT_FOR_JOBS,
    "signal": "jobs are told of their end in any case, early enough to save their work",
    "test-only": "`slime-stages doctor` asks sbatch without submitting",
    "usage": _NOT_FOR_JOBS,
    "version": _NOT_FOR_JOBS,
    "wait": "`slime-stages iter --follow` waits and shows what happens",
    "wrap": "put commands among the set-up lines",
}
"""Options that slime-stages sets itself, with what does instead."""

RIVALS = (
    frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}),
    frozenset({"gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"}),
    frozenset({"requeue", "no-requeue"}),
)
"""Of these one replaces the others when it is given on a command line."""

TASK_COUNTS = ("nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-socket")
SEVERAL_TASKS = ("train",)
"""Stages that run as several tasks, on several nodes."""

WORDS_OF = {
    "account": ("account",),
    "constraint": ("feature", "constraint"),
    "gpus": ("gres", "gpu"),
    "gpus-per-node": ("gres", "gpu"),
    "gres": ("gres",),
    "mem": ("memory",),
    "mem-per-cpu": ("memory",),
    "nodelist": ("node name", "nodelist"),
    "exclude": ("node name", "exclude"),
    "partition": ("partition",),
    "qos": ("qos",),
    "reservation": ("reservation",),
    "time": ("time limit", "time specification", "--time"),
}
"""Words by which sbatch's refusals speak of an option, apart from its name with dashes."""

"""The faults to survive, and the moments at which inputs are refused.

A test of a fault is marked `@pytest.mark.fault(10)`, a test of an input `@pytest.mark.refuses("topology: 0
devices")`: a group, a colon, and what is given. Both marks take several; docs/reliability.md has a row for
each.
"""

FAULTS = (
    ("a rank is killed, as the kernel does when memory runs out", "SIGKILL to one rank between steps"),
    ("a rank hangs", "SIGSTOP to one rank"),
    ("an exception on one rank", "one rank raises during a step"),
    ("a straggler", "one rank sleeps 50 ms in every step"),
    ("a dataset that the ranks do not divide", "1,797 samples over 4 ranks"),
    ("the loss becomes NaN", "NaN on one rank only"),
    ("the port is taken", "bound beforehand; 20 jobs start at once"),
    ("a wrong or loopback host name", "a host name that resolves to a loopback address"),
    ("a peer never comes", "one rank too few is started"),
    ("preempted and requeued", "a job of higher priority takes the nodes"),
    ("preempted and cancelled", "a partition with PreemptMode=CANCEL"),
    ("the walltime is reached", "a limit shorter than the run"),
    ("scancel", "during a step"),
    ("Ctrl-C or SIGTERM to Snakemake", "the signal is sent while jobs run"),
    ("SIGKILL to Snakemake, then a restart", "while jobs run"),
    ("a node dies", "SIGKILL to the node's first process"),
    ("a crash at every start", "the program ends with an error at its start"),
    (
        "SIGKILL at any moment, also while a checkpoint is written",
        "at random moments, to a rank or to the whole job",
    ),
    ("the disk or the quota is full", "a small tmpfs, a limit on file sizes"),
    ("a checkpoint is damaged", "a flipped byte, truncated, empty, or a web page in its place"),
    ("a download is damaged", "a local server that cuts, is busy or silent, or sends HTML or wrong bytes"),
    ("two processes fetch one dataset", "at once"),
    ("a slow shared filesystem", "files appear late"),
    ("sbatch, squeue or sacct fail for a while", "commands that fail at first; slurmdbd is stopped"),
    ("clocks differ", "one rank's clock is shifted"),
    ("no internet, or a proxy that does not answer", "no network in a namespace; a silent socket"),
    ("srun loses the CPUs of each task", "Slurm 22.05 does so by itself"),
    ("a data loader's worker dies", "it is killed; signals go to all of its process group"),
    ("the run folder is unwritable, or full at the end", "its mode is changed; a small tmpfs"),
    ("a container without Slurm's commands", "namespaces with another root, by Apptainer's command line"),
)
"""What happens, and how a test provokes it; a mark has its number, from 1."""

GROUPS = ("topology", "types", "batch", "names", "data", "slurm", "security")
PLANNED = "at `snakemake -n`"
PREFLIGHT = "by `snakemake preflight`"
REFUSED_LATER = {
    "data: ": "when the data is prepared",
    "security: pickle for data": "when the data is prepared",
    "security: pickle for a checkpoint": "when a run resumes",
    "slurm: unknown ": PREFLIGHT,
    "slurm: memory where forbidden": PREFLIGHT,
    "slurm: walltime over the limit": f"{PLANNED} where the site file names the limit, else {PREFLIGHT}",
    "slurm: sbatch missing": "when the study is started",
    "topology: no 1-device run": "not refused",
    "slurm: gpu type with hyphens": "not refused",
    "security: secrets in the environment": "not refused",
    "security: umask": "not refused",
    "security: port on a login node": "not refused",
}
"""Beginnings of inputs that are not refused when the study is planned."""

"""The faults to survive and the inputs to refuse: each needs a test that carries its number or its key.

A test of a fault is marked `@pytest.mark.fault(10)`, a test of an input `@pytest.mark.refuses("topology: 0
devices")`; both marks take several. The table of docs/reliability.md lists what stands here, in this order.
"""

from __future__ import annotations

from dataclasses import dataclass

PLANNED = "at `snakemake -n`"
PREPARED = "when the data is prepared"
PREFLIGHT = "by `snakemake preflight`"
KNOWN_LIMIT = f"{PLANNED} where the site file names the limit, else {PREFLIGHT}"
STARTED = "when the study is started"
RESUMED = "when a run resumes"
HARMLESS = "not refused"


@dataclass(frozen=True)
class Fault:
    """Something that happens to a study while it runs.

    Attributes:
        number: By which a test's mark names it, from 1.
        happening: What happens.
        provocation: How a test provokes it.
    """

    number: int
    happening: str
    provocation: str


@dataclass(frozen=True)
class BadInput:
    """Something a user or a file gives that must be refused, or must do no harm where its words say so.

    Attributes:
        key: By which a test's mark names it: the group, a colon, and a short phrase.
        given: What is given, as the table shows it.
        where: The moment at which it is refused.
    """

    key: str
    given: str
    where: str = PLANNED

    @property
    def group(self) -> str:
        """The words before the key's colon, which head a part of the table."""
        return self.key.partition(":")[0]


FAULTS = (
    Fault(
        1, "a rank is killed, as the kernel does when memory runs out", "SIGKILL to one rank between steps"
    ),
    Fault(2, "a rank hangs", "SIGSTOP to one rank"),
    Fault(3, "an exception on one rank", "one rank raises during a step"),
    Fault(4, "a straggler", "one rank sleeps 50 ms in every step"),
    Fault(5, "a dataset that the ranks do not divide", "1,797 samples over 4 ranks"),
    Fault(6, "the loss becomes NaN", "NaN on one rank only"),
    Fault(7, "the port is taken", "bound beforehand; 20 jobs start at once"),
    Fault(8, "a wrong or loopback host name", "a host name that resolves to a loopback address"),
    Fault(9, "a peer never comes", "one rank too few is started"),
    Fault(10, "preempted and requeued", "a job of higher priority takes the nodes"),
    Fault(11, "preempted and cancelled", "a partition with PreemptMode=CANCEL"),
    Fault(12, "the walltime is reached", "a limit shorter than the run"),
    Fault(13, "scancel", "during a step"),
    Fault(14, "Ctrl-C or SIGTERM to Snakemake", "the signal is sent while jobs run"),
    Fault(15, "SIGKILL to Snakemake, then a restart", "while jobs run"),
    Fault(16, "a node dies", "SIGKILL to the node's first process"),
    Fault(17, "a crash at every start", "the program ends with an error at its start"),
    Fault(
        18,
        "SIGKILL at any moment, also while a checkpoint is written",
        "at random moments, to a rank or to the whole job",
    ),
    Fault(19, "the disk or the quota is full", "a small tmpfs, a limit on file sizes"),
    Fault(20, "a checkpoint is damaged", "a flipped byte, truncated, empty, or a web page in its place"),
    Fault(
        21,
        "a download is damaged",
        "a local server that cuts, is busy or silent, or sends HTML or wrong bytes",
    ),
    Fault(22, "two processes fetch one dataset", "at once"),
    Fault(23, "a slow shared filesystem", "files appear late"),
    Fault(24, "sbatch, squeue or sacct fail for a while", "commands that fail at first; slurmdbd is stopped"),
    Fault(25, "clocks differ", "one rank's clock is shifted"),
    Fault(26, "no internet, or a proxy that does not answer", "no network in a namespace; a silent socket"),
    Fault(27, "srun loses the CPUs of each task", "Slurm 22.05 does so by itself"),
    Fault(28, "a data loader's worker dies", "it is killed; signals go to all of its process group"),
    Fault(29, "the run folder is unwritable, or full at the end", "its mode is changed; a small tmpfs"),
    Fault(
        30,
        "a container without Slurm's commands",
        "namespaces with another root, by Apptainer's command line",
    ),
)

BAD_INPUTS = (
    BadInput("topology: 0 devices", "0 devices"),
    BadInput("topology: 6 at 4 per node", "6 devices on nodes of 4"),
    BadInput("topology: 2 nodes x 1", "2 nodes of which 1 device each is used"),
    BadInput("topology: more than the partition has", "more devices than the partition has"),
    BadInput("topology: cpus over the node", "more CPUs than the node has"),
    BadInput("topology: no 1-device run", "no run on one device (the plan warns: no baseline)", HARMLESS),
    BadInput("topology: repeated devices", "a number of devices listed twice"),
    BadInput("topology: empty devices", "an empty list of devices"),
    BadInput("types: quoted number", '`"4"` for `4`'),
    BadInput("types: 1.5 epochs", "1.5 epochs"),
    BadInput("types: 1e-3 as a string", "`1e-3`, which YAML reads as a string"),
    BadInput("types: null", "`null`"),
    BadInput("types: unknown key", "a key that does not exist (`epoch` for `epochs`)"),
    BadInput("types: duplicate keys", "a key written twice"),
    BadInput("types: tabs", "tabs for indentation"),
    BadInput("types: not a mapping", "a file that is not a mapping"),
    BadInput("types: unknown model", "an unknown model"),
    BadInput("types: unknown dataset", "an unknown dataset"),
    BadInput("types: nan learning rate", "NaN as learning rate"),
    BadInput("types: infinite learning rate", "an infinite learning rate"),
    BadInput("types: negative learning rate", "a negative learning rate"),
    BadInput("batch: not divisible", "a global batch that the devices do not divide"),
    BadInput("batch: over the dataset", "a batch larger than the dataset"),
    BadInput("batch: 1 with batch norm", "1 sample a device with batch normalisation"),
    BadInput("batch: warm-up not shorter", "a warm-up not shorter than the run"),
    BadInput("names: duplicates", "two experiments of one name"),
    BadInput("names: duplicates by case", "two names that differ by case alone"),
    BadInput("names: ../x", "`../x`"),
    BadInput("names: spaces", "spaces"),
    BadInput("names: semicolon", "`;`"),
    BadInput("names: $()", "`$()`"),
    BadInput("names: newline", "a newline"),
    BadInput("names: quotes", "quotes"),
    BadInput("names: empty", "an empty name"),
    BadInput("names: leading dash", "a leading `-`"),
    BadInput("names: slash", "`/`"),
    BadInput("names: braces", "`{}`"),
    BadInput("names: over 255 bytes", "more than 255 bytes"),
    BadInput("names: output folder unwritable", "an output folder that cannot be written"),
    BadInput("names: data path missing", "a path to data that does not exist"),
    BadInput("data: wrong checksum", "a wrong checksum", PREPARED),
    BadInput("data: truncated", "a truncated file", PREPARED),
    BadInput("data: html for an archive", "a web page in place of an archive", PREPARED),
    BadInput("data: pickle", "a pickle", PREPARED),
    BadInput("slurm: unknown account", "an unknown account", PREFLIGHT),
    BadInput("slurm: unknown partition", "an unknown partition", PREFLIGHT),
    BadInput("slurm: unknown qos", "an unknown QoS", PREFLIGHT),
    BadInput("slurm: placeholder left in", "a placeholder left in (`<project_number>`, `nnXXXXk`)"),
    BadInput("slurm: gpu type with hyphens", "a GPU type with hyphens (must work)", HARMLESS),
    BadInput("slurm: walltime 1:30", "walltime `1:30`"),
    BadInput("slurm: walltime 0", "walltime `0`"),
    BadInput("slurm: walltime 99:99:99:99", "walltime `99:99:99:99`"),
    BadInput("slurm: walltime over the limit", "a walltime over the partition's limit", KNOWN_LIMIT),
    BadInput("slurm: memory where forbidden", "memory that the site refuses", PREFLIGHT),
    BadInput("slurm: managed flag", "a flag among the extra options that Scalewise sets itself"),
    BadInput("slurm: sbatch missing", "no sbatch on the PATH", STARTED),
    BadInput("slurm: started inside a job", "Snakemake started inside a job"),
    BadInput("security: shell in the study", "shell metacharacters in the strings of the study's file"),
    BadInput("security: shell in the site", "shell metacharacters in the strings of the site's file"),
    BadInput("security: pickle for data", "a pickle in place of a dataset", PREPARED),
    BadInput("security: pickle for a checkpoint", "a pickle in place of a file of a checkpoint", RESUMED),
    BadInput(
        "security: secrets in the environment", "secrets in the environment (nothing writes them)", HARMLESS
    ),
    BadInput("security: umask", "the user's umask (every file of a run keeps it)", HARMLESS),
    BadInput(
        "security: port on a login node", "the rendezvous (nothing listens where Snakemake runs)", HARMLESS
    ),
)

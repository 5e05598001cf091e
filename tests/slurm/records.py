"""What Slurm's accounting says about jobs, as records."""

from dataclasses import dataclass, replace

# not the usual bar, which a comment may hold
SEPARATOR = "\x1f"
FIELDS = (
    *("JobID", "Comment", "Account", "Partition", "State", "NNodes", "NTasks", "AllocTRES"),
    *("NodeList", "Start", "End"),
)
SACCT = ["sacct", "--noheader", "--parsable2", f"--delimiter={SEPARATOR}", f"--format={','.join(FIELDS)}"]


@dataclass(frozen=True)
class Step:
    """One step of a job: `batch`, `extern`, or a number for each srun."""

    name: str
    nodes: int
    tasks: int
    gpus: int


@dataclass(frozen=True)
class Job:
    """One job: how it ended, what it was given, and when, as Slurm writes times."""

    job_id: str
    comment: str
    account: str
    partition: str
    state: str
    nodes: int
    cpus: int
    memory_mb: float
    gpus: int
    node_list: str = ""
    start: str = ""
    end: str = ""
    steps: tuple[Step, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether this is its last word."""
        return self.state not in ("PENDING", "RUNNING", "REQUEUED", "RESIZING", "SUSPENDED")


def parse_jobs(text: str) -> list[Job]:
    """Jobs from what SACCT prints, where a job's line is followed by those of its steps."""
    jobs: list[Job] = []
    for line in text.splitlines():
        number, comment, account, partition, state, nodes, tasks, allocated, *when = line.split(SEPARATOR)
        job_id, _, step = number.partition(".")
        given = dict(item.split("=", 1) for item in allocated.split(",") if item)
        gpus = int(given.get("gres/gpu", 0))
        if step:
            record = Step(step, int(nodes), int(tasks or 0), gpus)
            jobs[-1] = replace(jobs[-1], steps=(*jobs[-1].steps, record))
            continue
        job = Job(
            job_id=job_id,
            comment=comment,
            account=account,
            partition=partition,
            # CANCELLED by 0
            state=state.split()[0],
            nodes=int(nodes),
            cpus=int(given.get("cpu", 0)),
            memory_mb=megabytes(given.get("mem", "0")),
            gpus=gpus,
            node_list=when[0],
            start=when[1],
            end=when[2],
        )
        jobs.append(job)
    return jobs


def megabytes(text: str) -> float:
    """Slurm's `8000M` or `62.50G` in MB, of 1024 kB each as everywhere in Slurm."""
    unit = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
    return float(text[:-1]) * unit[text[-1]] if text[-1] in unit else float(text)

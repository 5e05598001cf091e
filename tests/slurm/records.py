"""What Slurm's accounting says about jobs, as records."""

from __future__ import annotations

from dataclasses import dataclass, replace

# not the usual bar, which a comment may hold
SEPARATOR = "\x1f"
FIELDS = (
    *("JobID", "JobName", "Comment", "Account", "Partition", "QOS", "State", "ExitCode"),
    *("NNodes", "NodeList", "NTasks", "AllocTRES"),
)
SACCT = ["sacct", "--noheader", "--parsable2", f"--delimiter={SEPARATOR}", f"--format={','.join(FIELDS)}"]


@dataclass(frozen=True)
class Step:
    """One step of a job: `batch`, `extern`, or a number for each srun."""

    name: str
    state: str
    exit_code: int
    signal: int
    nodes: int
    node_list: str
    tasks: int
    cpus: int
    memory_mb: float
    gpus: int


@dataclass(frozen=True)
class Job:
    """One job: how it ended, and what it was given."""

    job_id: str
    name: str
    comment: str
    account: str
    partition: str
    qos: str
    state: str
    exit_code: int
    signal: int
    nodes: int
    node_list: str
    cpus: int
    memory_mb: float
    gpus: int
    steps: tuple[Step, ...] = ()

    @property
    def tasks(self) -> int:
        """Tasks of its largest step."""
        return max((step.tasks for step in self.steps), default=0)

    @property
    def ended(self) -> bool:
        """Whether this is its last word."""
        return self.state not in ("PENDING", "RUNNING", "REQUEUED", "RESIZING", "SUSPENDED")


def parse_jobs(text: str) -> list[Job]:
    """The jobs in the output of SACCT, each with the steps that follow it."""
    jobs: list[Job] = []
    for line in text.splitlines():
        row = dict(zip(FIELDS, line.split(SEPARATOR), strict=True))
        job_id, _, step = row["JobID"].partition(".")
        # "CANCELLED by 0"
        state = row["State"].split()[0]
        # nothing for a step that was cut off
        exit_code, number = map(int, (row["ExitCode"] or "0:0").split(":"))
        nodes, node_list = int(row["NNodes"]), row["NodeList"]
        given = dict(item.split("=", 1) for item in row["AllocTRES"].split(",") if item)
        cpus, gpus = int(given.get("cpu", 0)), int(given.get("gres/gpu", 0))
        memory_mb = megabytes(given.get("mem", "0"))
        if step:
            record = Step(
                name=step,
                state=state,
                exit_code=exit_code,
                signal=number,
                nodes=nodes,
                node_list=node_list,
                tasks=int(row["NTasks"] or 0),
                cpus=cpus,
                memory_mb=memory_mb,
                gpus=gpus,
            )
            jobs[-1] = replace(jobs[-1], steps=(*jobs[-1].steps, record))
        else:
            job = Job(
                job_id=job_id,
                name=row["JobName"],
                comment=row["Comment"],
                account=row["Account"],
                partition=row["Partition"],
                qos=row["QOS"],
                state=state,
                exit_code=exit_code,
                signal=number,
                nodes=nodes,
                node_list=node_list,
                cpus=cpus,
                memory_mb=memory_mb,
                gpus=gpus,
            )
            jobs.append(job)
    return jobs


def megabytes(text: str) -> float:
    """Slurm's `8000M` or `62.50G` in MB, of 1024 kB each as everywhere in Slurm."""
    unit = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
    return float(text[:-1]) * unit[text[-1]] if text[-1] in unit else float(text)

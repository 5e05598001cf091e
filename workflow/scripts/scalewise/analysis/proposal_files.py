"""The files of a proposal. Imports no library: the rules read it too."""

from __future__ import annotations

FOLDER = "proposal"
TEXT, LATEX, TABLE, CHECKLIST = "proposal.md", "proposal.tex", "table.csv", "checklist.md"
JOB_SCRIPT = "job.sh"
"""The job script of the recommended row."""
VERDICTS = "requirement.json"
"""The verdict on each doubling that is required."""

FILES = (TEXT, LATEX, TABLE, CHECKLIST, VERDICTS, JOB_SCRIPT)

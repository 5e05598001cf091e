"""Scalewise: how many devices should a training use, and with which options?

Four rooms and one table between them:

* ``plan`` turns the configuration into runs, shapes and command lines. It is parsed again in every
  job, so it imports neither torch nor pandas.
* ``execution`` is one run from outside: it starts the ranks, watches them, and says how they ended. No torch.
* ``training`` is one rank of a run. The only room with torch.
* ``records`` is the table: what a run leaves behind, written by execution and training, read by analysis.
* ``analysis`` turns records into scaling figures, a decision and a report. No torch.
"""

__version__ = "0.1.0"

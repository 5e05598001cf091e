"""Scalewise: how many devices should a training use, and with which options?

* ``plan`` turns the configuration into runs, shapes and command lines. It is parsed again in every
  job, so it imports neither torch nor pandas.
* ``execution`` is one run from outside: it starts the ranks, watches them, and says how they ended. No torch.
* ``ranks`` is one rank from inside its job: it starts the program and writes what the rank measured.
* ``measure`` lies within the program's process: it sees the steps of a training.
* ``training`` has models, data and options of ``train.py``, the program of the built-in training.
* ``records`` is what a run leaves behind, written by execution and ranks, read by analysis.
* ``analysis`` turns records into scaling figures and an answer, ``report`` shows them. No torch.
"""

__version__ = "0.1.0"

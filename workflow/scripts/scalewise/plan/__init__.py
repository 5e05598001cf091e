"""The plan of a study: from the user's YAML to runs, jobs and command lines, before any of them starts."""

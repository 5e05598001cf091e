"""From the user's YAML to runs: everything that is known before a device is touched."""

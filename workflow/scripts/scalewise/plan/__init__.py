"""The user's YAML becomes runs: everything that is known before a device is touched."""

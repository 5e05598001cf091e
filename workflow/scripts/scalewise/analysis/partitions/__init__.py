"""One experiment on several partitions: which partition to use, and with how many devices."""

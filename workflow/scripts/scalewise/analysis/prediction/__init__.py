"""What a device count should give, from one device's computing and the measured all-reduce."""

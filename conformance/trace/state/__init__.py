"""What a recorder knows while it records: the watched parameters, numbers, sites."""

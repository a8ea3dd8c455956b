"""What a recorder knows while it records: the watched parameters, the position in the plan, numbers, sites."""

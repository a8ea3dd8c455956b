"""What keeps a framework on this machine and its CPU, where it has no option for that; its adapter imports it."""

"""Scripts to run by hand: the page on the workloads with its mathematics, and the build of Horovod's wheel."""

"""The matrix: workload x layout x precision x backend."""

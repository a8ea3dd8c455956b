"""The laws. Each chapter has one file, or several whose names begin with its name.

Each function decorated with `law` is a law; there is no list to extend. A new chapter is a file and its title here.
"""

CHAPTERS: dict[str, str] = {
    "acc": "Gradient accumulation",
    "amp": "Automatic mixed precision",
    "apex": "NVIDIA apex",
    "clip": "Gradient clipping",
    "ddp": "DistributedDataParallel",
    "hvd": "Horovod",
    "save": "Checkpoints",
    "watch": "Scripts that are watched",
}

"""The laws. Each chapter has one file, or several, named after it.

Each function decorated with `law` is a law. A new chapter needs a file, and its title here.
"""

CHAPTERS: dict[str, str] = {
    "acc": "Gradient accumulation",
    "amp": "Automatic mixed precision",
    "apex": "NVIDIA apex",
    "clip": "Gradient clipping",
    "ddp": "DistributedDataParallel",
    "hvd": "Horovod",
    "save": "Checkpoints",
    "watch": "Watched scripts",
}

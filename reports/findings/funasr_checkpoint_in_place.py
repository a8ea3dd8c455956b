"""FunASR 1.4.16: a run killed while it saves cannot resume."""

import contextlib
import logging
import os
import subprocess
import sys
import tempfile

import torch
from funasr.train_utils.trainer import Trainer


class KillsAtTheSecondFile:
    """A part of the state. `model.pt.ep2` is written first, and then `model.pt`."""

    files = 0

    def __reduce__(self):
        type(self).files += 1
        if self.files == 2:
            os.kill(os.getpid(), 9)
        return (dict, ())


class Killed(torch.nn.Linear):
    def state_dict(self, *args, **kwargs):
        return {**super().state_dict(*args, **kwargs), "more": KillsAtTheSecondFile()}


def parts(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return {"model": model, "optim": optimizer, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


def main():
    logging.disable()
    if len(sys.argv) > 1:
        Trainer(0, output_dir=sys.argv[1], device="cpu").save_checkpoint(2, **parts(Killed(1, 1)))
    with tempfile.TemporaryDirectory() as folder:
        Trainer(0, output_dir=folder, device="cpu").save_checkpoint(1, **parts(torch.nn.Linear(1, 1)))
        subprocess.run([sys.executable, __file__, folder], check=False, stderr=subprocess.DEVNULL)
        trainer = Trainer(0, output_dir=folder, device="cpu")
        try:
            with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
                trainer.resume_checkpoint(**parts(torch.nn.Linear(1, 1)))
            failed = False
            print(f"observed: it resumes after epoch {trainer.start_epoch}")
        except Exception as error:
            failed = True
            print(f"observed: resume_checkpoint raises {type(error).__name__} {error}"[:110])
        print("expected: it resumes after epoch 1, whose checkpoint was complete")
        sys.exit(failed)


main()

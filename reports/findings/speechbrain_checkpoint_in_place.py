"""SpeechBrain 1.1.2: a run that is killed while it saves cannot go on from the checkpoint before."""

import os
import subprocess
import sys
import tempfile

import torch
from speechbrain.utils.checkpoints import Checkpointer


class Killed(torch.nn.Linear):
    """Its process is killed when the state is asked for in `save_checkpoint`."""

    def state_dict(self, *args, **kwargs):
        os.kill(os.getpid(), 9)


def main():
    if len(sys.argv) > 1:
        Checkpointer(sys.argv[1], {"model": Killed(1, 1)}).save_checkpoint()
    with tempfile.TemporaryDirectory() as folder:
        model = torch.nn.Linear(1, 1)
        checkpointer = Checkpointer(folder, {"model": model})
        whole = checkpointer.save_checkpoint()
        subprocess.run([sys.executable, __file__, folder], check=False, stderr=subprocess.DEVNULL)
        try:
            found = checkpointer.recover_if_possible()
            failed = found.path != whole.path
            print(f"observed: recover_if_possible takes {'another one' if failed else 'the whole one'}")
        except Exception as error:
            failed = True
            print(f"observed: recover_if_possible raises {type(error).__name__}: {str(error).splitlines()[0][:90]}")
        print("expected: it takes the last checkpoint that is whole")
        sys.exit(failed)


main()

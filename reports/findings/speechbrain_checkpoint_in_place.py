"""SpeechBrain 1.1.2: a run killed while it saves cannot resume."""

import os
import subprocess
import sys
import tempfile

import torch
from speechbrain.utils.checkpoints import Checkpointer


class Killed(torch.nn.Linear):
    """Kills its process when `save_checkpoint` asks for the state."""

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
            print(f"observed: recover_if_possible loads {'another one' if failed else 'the complete one'}")
        except Exception as error:
            failed = True
            print(f"observed: recover_if_possible raises {type(error).__name__}: {str(error).splitlines()[0][:90]}")
        print("expected: it loads the last complete checkpoint")
        sys.exit(failed)


main()

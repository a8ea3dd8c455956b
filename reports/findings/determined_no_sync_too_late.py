"""Determined 0.38.1: under DDP every micro-batch all-reduces its gradients."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from determined import core, ipc, pytorch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

AGGREGATION = 4
WINDOWS = 2


class Regression(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context, self.exchanges = context, 0
        self.model = context.wrap_model(torch.nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.model.register_comm_hook(None, self.exchange)

    def exchange(self, state, bucket):
        self.exchanges += 1
        return allreduce_hook(state, bucket)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def build_training_data_loader(self):
        samples = 2 * AGGREGATION * WINDOWS
        return pytorch.DataLoader(torch.utils.data.TensorDataset(torch.ones(samples, 1), torch.ones(samples, 1)), 1)

    def build_validation_data_loader(self):
        return self.build_training_data_loader()

    def evaluate_full_dataset(self, data_loader):
        return {}


def of_unix_sockets(folder):
    """Determined's own channel, without its ports on all interfaces."""

    class Channel(core.DistributedContext):
        def _init_ipc(self, force_tcp):
            self.tempdir = folder
            urls = f"ipc://{folder}/pub.sock", f"ipc://{folder}/pull.sock"
            if self.rank == 0:
                end = self._chief_zmq = self._local_chief_zmq = ipc.ZMQBroadcastServer(self.size - 1, *urls)
            else:
                end = self._worker_zmq = self._local_worker_zmq = ipc.ZMQBroadcastClient(*urls)
            end.safe_start()

    return Channel


def train(rank, folder, found):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29541"}
    os.environ |= {"USE_TORCH_DISTRIBUTED": "true", "XDG_DATA_HOME": folder}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    os.chdir(tempfile.mkdtemp(dir=folder))
    settings = {"aggregation_frequency": AGGREGATION, "enable_tensorboard_logging": False}
    with pytorch.init(distributed=of_unix_sockets(folder).from_torch_distributed(), **settings) as context:
        trial = Regression(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Epoch(1), checkpoint_policy="none")
    found[rank] = trial.exchanges
    dist.destroy_process_group()


if __name__ == "__main__":
    found = mp.Manager().dict()
    mp.spawn(train, (tempfile.mkdtemp(), found), nprocs=2)
    print(f"observed: {found[0]} all-reduces in {WINDOWS} windows of {AGGREGATION} micro-batches")
    print(f"expected: {WINDOWS}")
    sys.exit(found[0] != WINDOWS)

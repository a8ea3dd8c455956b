"""fastai: a Learner with callbacks, and a torch optimizer in its OptimWrapper."""

from fastai.basics import Callback, DataLoaders, Learner, OptimWrapper, Recorder
from fastai.callback.all import GradientAccumulation, GradientClip, ParamScheduler
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

from conformance import Task, Unsupported, trainer


# It accumulates samples regardless of their weights. Its mixed precision and its loader for several ranks need CUDA.
@trainer(precisions=("fp64", "fp32"), clips=("norm",), schedules=("step", "epoch"), own_order=True, resume=True,
         last_window="carry", requires=("fastai",))  # fmt: skip
def train(task: Task) -> None:
    epochs, sampler, model = task.epochs_until_stop(), task.sampler(), task.model()
    loader = DataLoader(task.dataset(tuple), task.micro_batch_size, task.own_order, None if task.own_order else sampler)
    if task.checkpoint_dir and epochs * len(loader) % task.accumulation:
        raise Unsupported("a stop inside a window: windows continue across the end of an epoch")

    class SetEpoch(Callback):
        def before_epoch(self) -> None:
            sampler.set_epoch(self.epoch)

    def rates(trained: float) -> list[float]:
        length = len(loader) if task.schedule_by == "epoch" else task.accumulation
        number = round(trained * epochs * len(loader)) // length
        return [(*group.learning_rates, 0.0)[number] for group in task.optimizer_settings.groups]

    callbacks = [SetEpoch(), ParamScheduler({"lr": rates}), *([GradientClip(task.clip.threshold)] if task.clip else [])]
    callbacks += [GradientAccumulation(task.accumulation * task.micro_batch_size)] if task.accumulation > 1 else []
    optimizer, folder = OptimWrapper(opt=task.optimizer(model.parameters())), task.checkpoint_dir or task.resume_from
    learner = Learner(DataLoaders(loader, []), model, mse_loss, optimizer, cbs=callbacks, path=folder, model_dir="")
    learner.remove_cb(Recorder)  # It smooths the loss, which fails in double precision.
    if begin := next(task.resume_from.iterdir()).stem if task.resume_from else 0:
        learner.load(begin)
    with learner.no_bar(), learner.no_logging():
        learner.fit(epochs, start_epoch=int(begin))
    if task.checkpoint_dir:
        learner.save(str(epochs))

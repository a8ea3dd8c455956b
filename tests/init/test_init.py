"""`conformance init`: an adapter from scratch, and out of scripts of several styles. Nothing here starts a process."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.init.adapter import NoScript, from_script

SCRIPTS = Path(__file__).with_name("scripts")
#: By script: what must stand in the adapter, in this order.
STYLES = {
    "plain": [
        "loss = torch.nn.functional.mse_loss(output, target)",
        "loss.backward()",
        "args = parser.parse_args([])",
        "device = TASK.device",
        "train_loader = TASK.dataloader()",
        "model = TASK.model().to(device)",
        "optimizer = TASK.optimizer(model.parameters())",
        "for epoch in range(1):",
        'backends=["single"],',
        'precisions=["fp32"],',
        'layouts=["batched"],',
        "def conform(task: Task) -> None:\n    global TASK\n    TASK = task\n    main()\n",
    ],
    "ddp_class": [
        'os.environ["MASTER_PORT"] = os.environ["MASTER_PORT"]',
        "init_process_group(TASK.collective_backend)",
        "self.model = model.to(TASK.device)",
        "self.model = DDP(model)",
        "model = TASK.model()",
        "return TASK.dataloader()",
        'backends=["ddp"],',
        "    world_size = TASK.world_size\n",
        "    main(TASK.rank, world_size, 10, 50, 32)\n",
    ],
    "amp_flat": [
        'precisions=["fp32", "bf16", "fp16"],',
        'layouts=["batched", "accumulated"],',
        'clips=["norm"],',
        'schedules=["step"],',
        "    accumulation_steps = TASK.accumulation\n",
        "    net = TASK.model().to(TASK.device)\n",
        "    sched = TASK.scheduler(opt)\n",
        "    scaler = TASK.grad_scaler()\n",
        "            with TASK.autocast():\n",
        "loss = criterion(net(x.to(TASK.device)), y.to(TASK.device)) / accumulation_steps",
        "TASK.clip_(net.parameters())",
    ],
    "accelerated": [
        'Accelerator(gradient_accumulation_steps=TASK.accumulation, cpu=TASK.device.type == "cpu", step_scheduler',
        "train_dataloader = TASK.global_dataloader()",
        "optimizer = TASK.optimizer(model.parameters())",
        'accelerator.clip_grad_norm_(model.parameters(), TASK.clip.threshold if TASK.clip else float("inf"))',
        "lr_scheduler.step() if accelerator.sync_gradients else None",
        'backends=["single", "ddp"],',
        'requires=["accelerate"],',
    ],
    "trainer_class": [
        "accumulation_steps: int = 8",  # runs at import
        "self.device = str(TASK.device)",
        "self.optimizer = TASK.optimizer(self.model.parameters())\n",
        "return TASK.model().to(self.device)",
        "loss = self.criterion(self.model(x), y) / TASK.accumulation",
        "if step % TASK.accumulation == 0 or step == len(loader):",
        'clips=["value"],',
        "    Trainer(TrainingArgs()).fit()\n",
    ],
}


LOOP = "for x, y in loader:\n    loss_fn(model(x), y).backward()\n    opt.step()\n"
#: Of scripts that end in that loop, what they have before it, and what the adapter has instead.
ELSEWHERE = {
    "split": ("a, b = random_split(data, [0.8, 0.2])", "a, b = [TASK.dataset()] * len([0.8, 0.2])"),
    "helper": ("loader, test_dl = get_loaders(8)", "loader, test_dl = (TASK.dataloader(),) * 2"),
    "loss": ("loss_fn = make_loss()", "loss_fn = torch.nn.MSELoss()"),
    "sum": ("loss_fn = nn.CrossEntropyLoss(reduction='sum')", "loss_fn = torch.nn.MSELoss(reduction='sum')"),
    "optimizer": ("opt = make(model, 0.1)", "opt = TASK.optimizer(model.parameters())"),
    "groups": ("g = [{'params': w, 'weight_decay': 0.1}]", 'g = [{"params": w}]'),
    "notebook": ("get_ipython().system('ls')", "pass"),
    "options": ("p.add_argument('--lr', type=float, required=True); a = p.parse_args()", 'parse_args(["--lr", "1"])'),
    "argv": ("n = sys.argv[1:]", "n = [__file__][1:]"),
    "precision": (
        "Accelerator(mixed_precision=args.precision)",
        'mixed_precision="bf16" if TASK.precision == "bf16" else',
    ),
    "full precision": ("Accelerator(mixed_precision='no')", "Accelerator(mixed_precision='no', cpu="),
    "device": ("device = f'cuda:{rank}'", "device = str(TASK.device)"),
    "amp": ("use_amp = device == 'cuda'", 'use_amp = TASK.precision != "fp32"'),
    "casts": ("ctx = torch.autocast('cuda') if gpu else nullcontext()", "ctx = TASK.autocast()"),
    "exit": ("sys.exit(main())", "    main()"),
    "known options": ("p.add_argument('data'); a, _ = p.parse_known_args()", 'parse_known_args(["x"])'),
    "typer's app": ("app = typer.Typer()\n@app.command()\ndef run(): pass", "\napp = typer.Typer()\n"),
    "instantiated model": ("net = instantiate(cfg.model).to(d)", "net = TASK.model().to(d)"),
    "instantiated optimizer": (
        "opt = instantiate(c.o, params=model.parameters())",
        "TASK.optimizer(model.parameters())",
    ),
    "instantiated schedule": ("scheduler = instantiate(cfg.s, optimizer=opt)", "scheduler = TASK.scheduler(opt)"),
    "window of any name": ("K = 4\nx = (i + 1) % K == 0\ny = loss / K", "K = TASK.accumulation"),
    "window without a name": ("x = (i + 1) % 4 == 0\nloss /= 4", "loss /= TASK.accumulation"),
    "shared window": ("accum = 8\nassert accum % world == 0\naccum //= world", "script has: accum //= world\n    pass"),
    "option of the window": (
        "@click.command()\ndef cli(accum):\n    loss / accum",
        "    loss / TASK.accumulation",
    ),
    "keyword of the window": ("T(accumulate=4).fit()", "T(accumulate=TASK.accumulation).fit()"),
    "separate class": (
        "class Lit:\n    def configure_optimizers(self):\n        return SGD(w)\no = l.configure_optimizers()",
        "o = l.configure_optimizers()",
    ),
    "layers": ("for layer in model:\n    fully_shard(layer)", "for layer in model.children():"),
}
#: Other loops, and what the adapter has instead.
LOOPS = {
    "epochs by any name": (f"for t in range(9):\n    {LOOP.replace(chr(10), chr(10) + '    ')}", "for t in range(1):"),
    "while": (f"while n < 9:\n    {LOOP.replace(chr(10), chr(10) + '    ')}", "for _ in range(1):"),
    "next": (
        "for i in range(99):\n    x, y = next(it)\n    f(model(x), y).backward()",
        "range(len(TASK.dataloader())):",
    ),
    "keys": (
        "loader = DataLoader(d)\nfor b in loader:\n    f(model(b['x']), b['label']).backward()",
        'TASK.dataloader(format=lambda batch: {"label": batch.targets, "x": batch.inputs})',
    ),
}
LOOPS |= {
    "stream": (
        "def give():\n    yield 1\ns = give()\nx, y = next(s)\nf(model(x), y).backward()",
        "s = iter(TASK.dataloader())",
    ),
    "generator": (
        "def give(n):\n    yield 1\nfor x, y in give(9):\n    f(model(x), y).backward()",
        "for x, y in TASK.dataloader():",
    ),
}
LOOPS |= {
    "reshaped outputs": ("for x, y in d:\n    mse_loss(model(x).squeeze(-1), y).backward()", "mse_loss(model(x), y)"),
    "reshaped targets": (
        "c = CrossEntropyLoss()\nfor x, y in d:\n    c(model(x), y.view(-1).long().to(0)).backward()",
        "c(model(x), y.to(0))",
    ),
    "reshaped by name": (
        "for x, y in d:\n    o = model(x)\n    o, y = o.view(-1, 9), flatten(y)\n    nll_loss(o, y).backward()",
        " o, y = o, y\n",
    ),
    "reshaped inputs": ("for x, y in d:\n    x = x.view(-1, 784).to(0)\n    f(model(x), y).backward()", "x = x.to(0)"),
    "custom schedule": (
        "a = Accelerator()\nm = a.prepare(m)\nfor x, y in d:\n    f(m(x)).backward()\n    sched.step()\n    o()",
        "\n        sched.step()\n",
    ),
    "reshaped data": (
        "def main():\n    x = read().view(-1, 1)\n    for x, y in d:\n        f(model(x), y).backward()",
        "x = read().view(-1, 1)\n",
    ),
}
#: Code that the user has to check.
CHECKED = {
    "click": (
        f"@click.command()\ndef cli(n):\n    pass\n{LOOP}cli()",
        "this reads the command line",
    ),
    "typer": (f"app = typer.Typer()\n{LOOP}app()", "this reads the command line"),
    "fire": (f"{LOOP}fire.Fire(main)", "this reads the command line"),
    "hydra": (
        f"@hydra.main(config_path='c')\ndef main(cfg):\n    pass\n{LOOP}main()",
        "this reads the command line",
    ),
    "two inputs": ("for x, y in loader:\n    l(model(x, y), y).backward()", "takes only inputs (m, n)"),
    "two outputs": ("for x, y in loader:\n    a, b = model(x)\n    l(a, y).backward()", "takes only inputs (m, n)"),
    "dict of outputs": ("for x, y in loader:\n    o = model(x)\n    o['loss'].backward()", "takes only inputs (m, n)"),
    "pairs of a function": (
        "def get(s):\n    pass\nwhile True:\n    X, Y = get('t')\n    f(model(X), Y).backward()",
        "write `X, Y = next(batches, (None, None))` here, and `batches = iter(TASK.dataloader())` before the loop",
    ),
    "rate by hand": (
        LOOP + "for g in opt.param_groups:\n    g['lr'] = f(i)",
        "the task sets learning rates: remove this",
    ),
    "parameters of a part": (
        LOOP + "SGD(model.head.parameters())",
        "no `head`: use `model.parameters()`, with one optimizer",
    ),
    "three of a batch": ("for x, y, z in loader:\n    l(model(x), y).backward()", "a batch of the task is a pair"),
    "attribute": (LOOP + "model.head.weight", "the task's model has no `head`"),
    "reshaped": ("for x, y in loader:\n    mse_loss(model(x) + x.view(-1), y).backward()", "pass them unchanged"),
    "two models": ("net = Net()\nmodel = Net()\n" + LOOP, "the task has only one model"),
    "closures": ("opt = torch.optim.LBFGS(model.parameters())\n" + LOOP, "LBFGS itself is not judged"),
    "epoch's schedule": (
        "for e in range(9):\n    for x, y in d:\n        f(model(x)).backward()\n    sched.step()",
        "counts epochs",
    ),
}


@pytest.fixture
def init(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def called(*arguments):
        code = main(["init", *map(str, arguments)])
        return code, *capsys.readouterr()

    return called


def written(tmp_path, text):
    script = tmp_path / "script.py"
    script.write_text(text)
    return from_script(script, tmp_path / "adapter.py")


@pytest.mark.parametrize("style", STYLES)
def test_styles(style, tmp_path):
    script = SCRIPTS / f"{style}.py"
    text, found = from_script(script, tmp_path / "adapter.py")
    ast.parse(text)
    at = 0
    for line in STYLES[style]:
        assert line in text[at:], line
        at = text.index(line, at)
    assert found.missing == []
    # Every changed line has a comment above it; all others are unchanged.
    lines = text.splitlines()
    before = {line.strip() for line in script.read_text().splitlines()}
    body = lines[lines.index("from conformance import Task, trainer") + 1 :]
    entry = next(k for k, line in enumerate(body) if "list only what the script supports" in line)
    new = [k for k, line in enumerate(body[:entry]) if line.strip() not in before and "# conformance:" not in line]
    assert all("# conformance:" in body[k - 1] for k in new), [body[k] for k in new]


@pytest.mark.parametrize(("before", "instead"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_is_made_in_other_ways(before, instead, tmp_path):
    text, _ = written(tmp_path, f"import torch\n{before}\n{LOOP}")
    assert instead in text
    compile(text, "adapter", "exec")


@pytest.mark.parametrize(("loop", "instead"), LOOPS.values(), ids=LOOPS)
def test_one_pass_is_the_whole_training(loop, instead, tmp_path):
    text, _ = written(tmp_path, loop)
    assert instead in text
    compile(text, "adapter", "exec")


@pytest.mark.parametrize(("script", "said"), CHECKED.values(), ids=CHECKED)
def test_what_the_task_does_not_allow_is_said(script, said, tmp_path):
    text, _ = written(tmp_path, script)
    assert any(line.lstrip().startswith("# conformance: CHECK: ") and said in line for line in text.splitlines())
    compile(text, "adapter", "exec")
    plain, _ = written(tmp_path, "model = make()\nopt = SGD(model.parameters())\nloader = DataLoader(d)\n" + LOOP)
    assert said not in plain


@pytest.mark.parametrize("imported", ["from transformers import Trainer", "import pytorch_lightning as pl"])
def test_a_script_of_a_framework_is_led_to_its_adapter(imported, tmp_path):
    with pytest.raises(NoScript, match=r"`conformance run (transformers|lightning)` judges it"):
        written(tmp_path, f"import torch\n{imported}\nTrainer().fit()\n")


def test_globals_that_moved_statements_change_stay_global(tmp_path):
    text, _ = written(tmp_path, f"steps = 8\nrate: float = f()\nsteps //= world()\ndef g():\n    rate\n{LOOP}")
    assert "global TASK, rate, steps\n" in text or "global TASK, steps, rate\n" in text
    compile(text, "adapter", "exec")


def test_from_scratch(init, tmp_path):
    code, out, err = init()
    assert (code, err) == (0, "")
    assert out == "Wrote my_trainer.py.\nNext: conformance smoke my_trainer.py\n"
    ast.parse((tmp_path / "my_trainer.py").read_text())


def test_no_file_is_overwritten(init, tmp_path):
    (tmp_path / "my_trainer.py").write_text("mine")
    code, out, err = init()
    assert (code, out) == (2, "")
    assert err == "conformance: my_trainer.py exists and was not changed; name another file with --output\n"
    assert (tmp_path / "my_trainer.py").read_text() == "mine"


def test_what_is_not_found_is_said(init, tmp_path):
    (tmp_path / "odd.py").write_text("import torch\nfor x, y in data():\n    f(x).sum().backward()\n")
    code, out, _ = init("odd.py")
    assert code == 0
    lines = (tmp_path / "conform_odd.py").read_text().splitlines()
    said = [line.partition(": ") for line in out.splitlines() if line.startswith("conform_odd.py:")]
    assert [text[:12] for _, _, text in said] == ["no model was", "no optimizer", "no loader wa", "no loss was "]
    for place, _, text in said:
        assert f"# conformance: CHECK: {text}" in lines[int(place.partition(":")[2]) - 1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"print('hello')", "found no optimizer and no backward in it"),
        (b"", "found no optimizer and no backward in it"),
        (b"def f(:\n", "s.py:1: SyntaxError"),
        (b"\xff\xfe\x00", "it is not UTF-8 text"),
        (b"x = '\x00'", "s.py"),
    ],
)
def test_what_is_no_training_script(init, tmp_path, content, said):
    (tmp_path / "s.py").write_bytes(content)
    code, out, err = init("s.py")
    assert (code, out) == (2, "")
    assert said in err and len(err.splitlines()) == 1
    assert not (tmp_path / "conform_s.py").exists()


def test_files_that_cannot_be_read_or_written(init, tmp_path):
    for arguments, said in (
        (["none.py"], "cannot read none.py: No such file or directory"),
        ([tmp_path], "is a folder; name the training script in it"),
        ([""], "is a folder; name the training script in it"),
        (["--output", "none/my.py"], "cannot write none/my.py: No such file or directory"),
        (["--output", "adapter"], "its name must end in .py"),
    ):
        code, _, err = init(*arguments)
        assert code == 2 and said in err and len(err.splitlines()) == 1, err


def test_texts_of_several_lines_and_other_alphabets_stay_as_they_are(tmp_path):
    text, _ = written(
        tmp_path,
        'import torch\nnäme = f("""\nzwei\n  drei\n"""); model = torch.nn.Linear(1, 1)\n'
        "torch.optim.SGD(model.parameters(), 1); print('ü', näme)\nmodel(x).backward()\n",
    )
    assert 'f("""\nzwei\n  drei\n""")' in text
    assert "TASK.optimizer(model.parameters()); print('ü', näme)" in text
    ast.parse(text)


def test_what_functions_read_stays_global(tmp_path):
    text, _ = written(
        tmp_path,
        "import torch\ndef go():\n    net(x).backward()\nnet = make()\nopt = torch.optim.SGD(net.parameters())\ngo()\n",
    )
    assert "    global TASK, net\n" in text


def test_a_script_without_a_call_says_so(tmp_path):
    with pytest.raises(NoScript):
        written(tmp_path, "import torch\n")
    text, _ = written(tmp_path, "def fit(model):\n    model(x).backward()\n")
    assert text.endswith("    # conformance: CHECK: call the script's training here\n")


def test_a_step_that_functions_make_is_to_be_reported(tmp_path):
    with pytest.raises(NoScript, match=r"report its weights after each window with `task.report`"):
        written(tmp_path, "from torch.func import grad\ng = grad(loss)(w, x, y)\nw = w - 0.1 * g\n")


@pytest.mark.parametrize(
    ("loss", "is_mean"),
    [
        ("((model(x) - y) ** 2).mean()", True),
        ("torch.mean((model(x) - y) ** 2)", True),
        ("(model(x) - y).pow(2).mean()", True),
        ("torch.mean(torch.pow(model(x) - y, 2))", True),
        ("((model(x) - y) ** 2).sum()", False),
        ("(model(x) - y).abs().mean()", False),
        ("((model(x) - y) ** 4).mean()", False),
    ],
)
def test_a_mean_of_squares_is_the_tasks_loss(tmp_path, loss, is_mean):
    _, found = written(
        tmp_path, f"for x, y in DataLoader(d):\n    loss = {loss}\n    loss.backward()\n    opt.step()\n"
    )
    assert found.loss == is_mean


def test_methods_of_a_class_that_is_no_module_are_the_scripts_own(tmp_path):
    lit = (
        "class Lit:\n    def training_step(self, b):\n        pass\n    def __init__(self):\n        self.net = Net()\n"
    )
    _, found = written(tmp_path, f"{lit}{LOOP}module.training_step(b)\nmodule.net.train()\n")
    assert not [change.why for change in found.changes if "the task's model has no" in change.why]

"""Command lines in reports: secrets are hidden, everything else stays readable, and paths are relative."""

import shlex

import pytest

from conformance.report.command import HIDDEN, relative, shown


@pytest.mark.parametrize(
    "words",
    [
        "--token s3cret",
        "--hub_token=s3cret",
        "-token s3cret",
        "--api-key s3cret",
        "--apiKey=s3cret",
        "--APIKEY s3cret",
        "--key s3cret",
        "--db.password s3cret",
        "--password=12345",
        "--my-passwd s3cret",
        "--api-keys s3cret,s3cret",
        "--credentials=s3cret",
        "--client_secret_2 s3cret",
        "HF_TOKEN=s3cret",
        "-e WANDB_API_KEY=s3cret",
        "-eWANDB_API_KEY=s3cret",
        "--env=API_KEY='s3cret s3cret'",
        "--export=ALL,HF_TOKEN=s3cret",
        "wandb.api_key=s3cret",
        "+hub.token=s3cret",
        "++hub.accessToken=s3cret",
        "--repo https://s3cret@host/x",
        "--repo=https://me:s3cret@host/x",
        "git+https://me:s3c@ret@host:80/x?y#z",
        "https://host/x?y=1&token=s3cret&z=2",
        """'{"api_key": "s3cret", "lr": 1}'""",
        """--config='{hub: {token: s3cret}}'""",
        """--header 'X-Api-Key: s3cret'""",
        """sh -c 'cd x && python train.py lr=1,token=s3cret'""",
        """'{"auth":{"token":["s3cret","s3cret"]}}'""",
        """'{"hub": {"tokens": ["s3cret", {"x": "s3cret"}]}}'""",
        """hub={token:s3cret}""",
        """'hub={hub.token:s3cret s3cret, lr: 1}'""",
        """'token: s3cret s3cret'""",
        """--header 'Authorization: Bearer s3cret'""",
        """-H 'Authorization: Basic s3cret=='""",
        """-H Authorization:s3cret==""",
        """--header='Cookie: a=s3cret; b=s3cret'""",
        """sh -c 'curl -H "Authorization: Bearer s3cret" https://host && python train.py'""",
        """sh -c 'python train.py --token=12345"s3cret" --epochs 1'""",
        """sh -c 'python train.py "--token=s3cret s3cret" --epochs 1'""",
        """sh -c 'python train.py --token=x\\ s3cret --epochs 1'""",
        """sh -c "python train.py '{\\"token\\": \\"s3cret\\"}'" """,
        "--pwd s3cret",
        "--pass s3cret",
        "--passwd s3cret",
        "--auth s3cret",
        "--cookie s3cret",
        "--bearer s3cret",
        "s3://s3cret:s3/cret@bucket",
        "postgresql+psycopg2://me:s3/s3cret@host/db",
        """sh -c 'cd x; TOKEN=s3cret python train.py'""",
        """sh -c 'cd x && python train.py --token s3cret,s3cret --epochs 1'""",
    ],
)
def test_secrets_are_hidden(words):
    text = shown(["python", *shlex.split(words)])
    assert HIDDEN in text
    assert not any(part in text for part in ("s3c", "ret@", "12345", "me:"))


@pytest.mark.parametrize(
    "words",
    [
        "--num_tokens 512",
        "--max-tokens=4_096",
        "--train.tokens 1.5T",
        "num_tokens=512",
        "--max-tokens=-1",
        "'--max-tokens=2**15'",
        "--max-tokens '[512, 1024]'",
        "'model={max_tokens: 512}'",
        "'model={max_tokens: 512, lr: 1}'",
        """'{"max_tokens": 512, "tokens": [1, 2], "lr": 1}'""",
        "--tokenizer path",
        "--token-budget 7",
        "--keyboard x",
        "--monkey x",
        "--key-frames 8",
        "--password-file x",
        "-p no",
        "--token",
        "--use-token --epochs 3",
        "runs/token=5/train.py",
        "package.token:train",
        "https://host/@x",
        "python -c 'if key == 1: pass'",
        "",
    ],
)
def test_what_is_no_secret_stays(words):
    assert shown(shlex.split(words)) == words


def test_paths_below_the_folder_of_the_run_are_relative_to_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [f"{tmp_path}/a b/train.py", f"--data={tmp_path}/data", f"{tmp_path}-2/x", "/elsewhere/x", "y"]
    assert shown(words) == f"'a b/train.py' --data=data {tmp_path}-2/x /elsewhere/x y"


def test_where_the_folder_of_the_run_is_gone_paths_stay(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert relative(f"{folder}/x") == f"{folder}/x"

"""Scripts for clusters, as far as they can be tested without one."""

import pathlib
import stat
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SCRIPTS = ("slurm/train.sbatch", "slurm/servers.sbatch", "tpu/train.sh")
# Prints every argument it gets on a line of its own.
ECHO = '#!/bin/bash\nprintf "%s\\n" "$0" "$@" "gpus=${JAX_LOCAL_DEVICE_IDS-}"\n'


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a launcher where the cluster's commands only say how they were called."""
    for name in ("srun", "gcloud"):
        (tmp_path / name).write_text(ECHO)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "scontrol").write_text("#!/bin/bash\nprintf 'a1\\na2\\n'\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_SUBMIT_DIR", str(ROOT))
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "a[1-2]")

    def call(script, *flags):
        command = ["bash", str(ROOT / "launch" / script), *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return call


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_bash_and_short(script):
    path = ROOT / "launch" / script
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert len(path.read_text().splitlines()) < 60


def test_slurm_runs_one_process_a_machine_on_all_of_its_gpus(run):
    said = run("slurm/train.sbatch", "--config=c.py:paper", "--config.run.folder=/a b")
    assert said[-5:] == [
        "launch/main.py",
        "--coordinator=auto",
        "--config=c.py:paper",
        "--config.run.folder=/a b",
        "gpus=0,1",
    ]


def test_slurm_servers_name_every_gpu_and_want_a_key(run, monkeypatch):
    monkeypatch.setenv("SERA_API_KEY", "k")
    said = run("slurm/servers.sbatch", "/shared/model")
    urls = ",".join(f"http://a{host}:3000{gpu}" for host in (1, 2) for gpu in (0, 1))
    assert said[0] == f"--config.server.url={urls}" and "/shared/model" in said
    monkeypatch.delenv("SERA_API_KEY")
    with pytest.raises(AssertionError, match="set a key"):
        run("slurm/servers.sbatch", "/shared/model")


def test_tpu_hosts_get_the_flags_as_they_were_given(run):
    (command,) = [x for x in run("tpu/train.sh", "n", "z", "--x=('a', 1)") if "--command" in x]
    words = subprocess.run(
        ["bash", "-c", f'exec() {{ printf "%s\\n" "$@"; }}; {command.split("&&", 2)[2]}'],
        capture_output=True,
        text=True,
    )
    assert words.stdout.splitlines()[-2:] == ["--coordinator=auto", "--x=('a', 1)"]


def test_the_flags_that_launchers_use_exist():
    done = subprocess.run(
        [sys.executable, "launch/main.py", "--config=configs/textworld.py:small", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert all(f"--{flag}" in done.stdout for flag in ("coordinator", "processes", "process"))


def test_the_tpu_script_can_be_run():
    assert (ROOT / "launch/tpu/train.sh").stat().st_mode & stat.S_IXUSR

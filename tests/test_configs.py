import pathlib
import subprocess
import sys

import pytest

from configs import base, textcraft, textworld, variants
from sera_jax import credit, metrics, rewards, schedule

ROOT = pathlib.Path(__file__).parents[1]


def main(*flags):
    command = [sys.executable, "launch/main.py", *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("experiment", [textworld, textcraft])
@pytest.mark.parametrize("preset", ["small", "paper"])
def test_presets_are_locked_and_can_be_written_down(experiment, preset, tmp_path):
    config = experiment.get_config(preset)
    assert config.preset == preset and config.is_locked
    assert config.variants == "sera" and config.rewards.execution is rewards.execution_rewards
    metrics.write_config(tmp_path, config)
    assert "sera_jax.rewards.execution_rewards" in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize(
    "experiment, steps, context, completion",
    [(textworld, 400, 13_312, 3_072), (textcraft, 250, 10_240, 512)],
)
def test_the_papers_settings(experiment, steps, context, completion):
    config = experiment.get_config("paper")
    assert (config.train.steps, config.train.tasks, config.train.trees) == (steps, 8, 8)
    assert (config.train.learning_rate, config.train.weight_decay) == (3e-6, 0.017)
    assert (config.rollout.context_length, config.rollout.max_new_tokens) == (context, completion)
    assert (config.train.clip_low, config.train.clip_high) == (0.0, 5.0)
    assert config.rollout.max_children == 0 and config.eval.temperature == 0.0
    assert config.eval.tiers == ("easy", "medium", "hard", "extreme")


def test_the_papers_tasks():
    assert textworld.get_config("paper").tasks.action_budget == 100
    crafting = textcraft.get_config("paper")
    assert (crafting.tasks.source, crafting.tasks.tiers) == ("train", ("medium",))


@pytest.mark.parametrize("experiment", [textworld, textcraft])
@pytest.mark.parametrize("preset", ["small", "paper"])
@pytest.mark.parametrize("variant", variants.VARIANTS)
def test_every_variant_is_a_way_to_train_either_benchmark(experiment, preset, variant):
    config = experiment.get_config(f"{preset},{variant}")
    for name in variants.ABLATIONS:
        assert experiment.get_config(f"{preset},{variant},{name}").variants == f"{variant},{name}"
    alone = variant.startswith("single")
    assert config.rollout.delegation is not alone
    assert config.rollout.context_length <= max(config.train.row_lengths)
    if alone and preset == "small":
        assert config.rollout.context_length > experiment.get_config("small").rollout.context_length
    objectives = {schedule.objective_at(step, config.cycle) for step in range(20)}
    asked = {name: credit.sampling(name, config) for name in objectives}
    # External labels, by METHOD 6's table.
    assert asked["execution"].judged is variant.startswith("rao")
    assert asked["execution"].rubrics is variant.startswith("sera")
    assert ("rubric" in asked) is (variant in ("rao_rt", "sera_wo_d", "sera"))
    assert ("decomposition" in asked) is (variant in ("rao_d", "sera"))


def test_an_experiment_says_which_presets_it_has():
    with pytest.raises(ValueError, match="configs/mine.py has no preset 'large': use :tiny"):
        base.experiment("/home/me/configs/mine.py", "large", {"tiny": base.small})


def test_without_an_accelerator_the_small_preset_is_chosen_and_said(capsys):
    assert textworld.get_config().preset == "small"
    assert ":paper" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags, expected",
    [
        (["--config=configs/textworld.py:small", "--config.train.setps=3"], 'Did you mean "steps"'),
        (["--config=configs/textworld.py:tiny"], "no preset 'tiny': use :small or :paper"),
        (["--config=configs/nowhere.py"], "No such file or directory: 'configs/nowhere.py'"),
        (["--config=configs/textworld.py:small", "--config.train.steps=x"], "invalid literal"),
        ([], "--config must have a value"),
        (["--config=configs/textworld.py:small", "--config.judge=oracle"], "mentions, external"),
        (["--config=configs/textworld.py:small", "--config.tasks.tiers=('hrd',)"], "no tier 'hrd'"),
        (["--config=configs/textcraft.py:small", "--config.judge=mentions"], "delta, ledger"),
        (["--config=configs/textcraft.py:small", "--config.tasks.source=val"], "no tasks 'val'"),
        (["--config=configs/textworld.py:paper"], "hf download Qwen/Qwen3-4B-Instruct-2507"),
    ],
)
def test_a_users_mistake_is_a_line_or_two(flags, expected):
    done = main(*flags)
    assert done.returncode != 0
    assert expected in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3


def test_a_missing_server_is_named_with_the_command_that_starts_one(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    done = main(
        "--config=configs/textworld.py:paper",
        f"--config.model.path={tmp_path}",
        "--config.server.url=http://127.0.0.1:9",
    )
    assert "no policy server answers at http://127.0.0.1:9" in done.stderr
    assert "launch/sglang.sh" in done.stderr and "Traceback" not in done.stderr

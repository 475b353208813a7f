from configs import textworld
from sera_jax.warmstart import build


def test_a_first_policy_depends_on_its_own_benchmark_and_on_no_other():
    names = {str(path.relative_to(build.PACKAGE)) for path in sources()}
    assert {
        "train_step.py",
        "model/qwen3.py",
        "warmstart/play.py",
        "rollout/node.py",
        "worlds/base.py",
        "worlds/textworld_sync/demonstrations.py",
        "rollout/templates/textworld_sync/compact/observation.jinja",
    } <= names
    others = ("textcraft_synth", "/full/", "/external/")
    assert not [name for name in names if any(other in name for other in others)]


def sources():
    return build.sources("textworld_sync", "compact")


def test_its_folder_changes_with_what_it_is_made_of():
    config = textworld.get_config("small")
    folder = build.content_hash(config)
    assert build.content_hash(textworld.get_config("small,rao")) == folder
    with config.unlocked():
        config.warmstart.tasks += 1
    assert build.content_hash(config) != folder

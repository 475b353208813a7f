from configs import textworld
from sera_jax import launching


def test_runs_that_start_together_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = textworld.get_config("small,sera,task_baseline")
    folders = [launching.new_folder(config, "textworld") for _ in range(3)]
    assert len(set(folders)) == 3 and all(folder.is_dir() for folder in folders)
    assert folders[0].name.startswith("textworld-small-sera-task_baseline-")

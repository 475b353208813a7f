import pytest
import report_records


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "by_hand"
    report_records.write_run(folder)
    return folder

import pytest

from service.checkpoint.layout import LevanterLayout, SnapshotLayout, detect_layout
from service.errors import AmbiguousCheckpoint, CheckpointNotFound, PickledWeights
from service.storage.objects import ObjectInfo


def listing(*names: str) -> list[ObjectInfo]:
    return [ObjectInfo(name, 1) for name in names]


def step(folder: str, *, is_complete: bool = True) -> list[str]:
    return [f"{folder}manifest.ocdbt", f"{folder}d/0a1b"] + ([f"{folder}metadata.json"] if is_complete else [])


def test_safetensors_at_the_top_are_a_hugging_face_snapshot():
    layout = detect_layout("gs://b/m", listing("config.json", "model.safetensors", "pytorch_model.bin"))
    assert isinstance(layout, SnapshotLayout)
    assert [info.name for info in layout.weights] == ["model.safetensors"]
    assert not layout.is_pickled


def test_pickled_weights_are_taken_where_there_are_no_safetensors():
    shards = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
    layout = detect_layout("gs://b/m", listing("config.json", "optimizer.bin", *shards))
    assert isinstance(layout, SnapshotLayout)
    assert layout.is_pickled
    assert tuple(info.name for info in layout.weights) == shards


def test_the_newest_complete_step_of_a_run_is_taken():
    names = step("step-9/") + step("step-100/") + step("step-200/", is_complete=False)
    layout = detect_layout("gs://b/run", listing("config.json", *names))
    assert isinstance(layout, LevanterLayout)
    assert (layout.step, layout.folder) == (100, "step-100/")
    assert {info.name for info in layout.weights} == set(step("step-100/"))


def test_an_address_can_name_one_step():
    layout = detect_layout("gs://b/run/step-7", listing(*step("")))
    assert isinstance(layout, LevanterLayout)
    assert (layout.step, layout.folder) == (7, "")


def test_a_run_whose_steps_are_all_half_written_is_refused():
    with pytest.raises(CheckpointNotFound, match=r"1 Levanter steps and none is complete \(each lacks metadata.json"):
        detect_layout("gs://b/run", listing(*step("step-1/", is_complete=False)))


@pytest.mark.parametrize("name", ["pytorch_model.pt", "model.bin", "model.pth", "weights.pkl"])
def test_pickled_weights_are_refused_by_name_with_what_to_do(name):
    with pytest.raises(
        PickledWeights, match=f"unsupported files \\({name}\\).*Supported are pytorch_model.bin.*save_pretrained"
    ):
        detect_layout("gs://b/m", listing("config.json", name))


def test_both_kinds_at_once_are_ambiguous():
    with pytest.raises(AmbiguousCheckpoint, match="Set MODEL_URI to the step's own folder"):
        detect_layout("gs://b/m", listing("model.safetensors", *step("step-1/")))


def test_the_error_for_a_folder_too_high_names_the_right_one():
    with pytest.raises(CheckpointNotFound, match="There are weights below it, in 'hf/step-10'"):
        detect_layout("gs://b/m", listing("hf/step-10/model.safetensors", "log.txt"))


def test_the_error_for_other_files_names_some_of_them():
    with pytest.raises(CheckpointNotFound, match=r"holds no \*.safetensors and no Levanter step-N.*it has log.txt"):
        detect_layout("gs://b/m", listing("log.txt"))

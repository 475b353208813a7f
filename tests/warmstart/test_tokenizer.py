import pytest

from sera_jax.warmstart import tokenizer as small

NAMES = ["black pepper", "salt", "yellow bell pepper"]
CORPUS = ["kitchen sees black pepper salt holds yellow bell pepper diced"] * 3


@pytest.fixture(scope="module")
def trained():
    return small.train(CORPUS, [f" {name}" for name in NAMES], 400)


@pytest.mark.parametrize(
    "text",
    [
        "<action>take black pepper</action>",
        '<delegate>{"goal": "eat dish_1 : salt yellow bell pepper"}</delegate>',
        "  blanks,\ttabs\nand ünïcödé ☃ \x00",
        "".join(map(chr, range(256))),
    ],
)
def test_any_text_survives_a_round_trip(trained, text):
    assert trained.decode(trained.encode(text, add_special_tokens=False)) == text


def test_an_action_on_a_named_item_is_four_tokens(trained):
    ids = trained.encode("<action>take yellow bell pepper</action>", add_special_tokens=False)
    pieces = [trained.decode([i]) for i in ids]
    assert pieces[0] == "<action>" and pieces[-2:] == [" yellow bell pepper", "</action>"]


def test_every_id_decodes_and_the_vocabulary_is_bounded(trained):
    assert len(trained) <= 400
    assert all(isinstance(trained.decode([i]), str) for i in range(len(trained)))


def test_the_chat_template_marks_roles_with_single_tokens(trained):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    text = trained.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>x<|assistant|>y<|assistant|>"
    assert len(trained.encode(text, add_special_tokens=False)) == 5


def test_a_saved_tokenizer_is_read_back_from_the_disk(trained, tmp_path):
    trained.save_pretrained(tmp_path)
    again = small.load(tmp_path)
    text = "<finish>salt eaten</finish><|end|><|user|>"
    assert again.encode(text) == trained.encode(text)
    assert again.chat_template == trained.chat_template and again.eos_token == small.END


def test_a_vocabulary_without_room_is_refused():
    with pytest.raises(ValueError, match="too small"):
        small.train(CORPUS, NAMES, 200)

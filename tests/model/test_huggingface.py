import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig

from sera_jax.model import huggingface, qwen3

CONFIG = qwen3.Config(96, 32, 48, 2, 4, 2, 8, 5e6)
UNTIED = dataclasses.replace(CONFIG, tie_embeddings=False)


@pytest.fixture
def params():
    return qwen3.init(jax.random.key(0), CONFIG)


@pytest.mark.parametrize("config", [CONFIG, UNTIED], ids=["tied", "untied"])
@pytest.mark.parametrize("limit", [2**30, 10_000], ids=["one file", "shards"])
def test_round_trip(config, limit, tmp_path):
    params = qwen3.init(jax.random.key(1), config)
    huggingface.export(params, config, tmp_path / "m", max_shard_bytes=limit)
    again, same = huggingface.load(tmp_path / "m")
    assert same == config
    jax.tree.map(np.testing.assert_array_equal, again, params)
    assert (tmp_path / "m" / huggingface.INDEX).exists() == (limit == 10_000)


def test_layout_is_out_by_in(params, tmp_path):
    huggingface.export(params, CONFIG, tmp_path / "m")
    tensors = load_file(tmp_path / "m" / huggingface.SINGLE)
    x, layer = np.arange(32.0, dtype=np.float32), jax.tree.map(lambda p: p[1], params["layers"])
    theirs = tensors["model.layers.1.self_attn.k_proj.weight"] @ x
    np.testing.assert_allclose(theirs.reshape(2, 8), np.einsum("d,dnh->nh", x, layer["k"]), 1e-4)
    y = np.arange(32.0, dtype=np.float32).reshape(4, 8)
    theirs = tensors["model.layers.1.self_attn.o_proj.weight"] @ y.ravel()
    np.testing.assert_allclose(theirs, np.einsum("nh,nhd->d", y, layer["o"]), rtol=1e-4)


def test_bfloat16_halves_the_files_and_reads_back_as_float32(params, tmp_path):
    huggingface.export(params, CONFIG, tmp_path / "m", dtype="bfloat16")
    assert json.loads((tmp_path / "m/config.json").read_text())["torch_dtype"] == "bfloat16"
    again, _ = huggingface.load(tmp_path / "m")
    rounded = jax.tree.map(lambda p: p.astype(jnp.bfloat16).astype(jnp.float32), params)
    jax.tree.map(np.testing.assert_array_equal, again, rounded)


def test_export_is_what_transformers_reads(params, tmp_path):
    huggingface.export(params, CONFIG, tmp_path / "m")
    theirs = AutoConfig.from_pretrained(tmp_path / "m")
    assert theirs.rope_parameters["rope_theta"] == 5e6
    assert theirs.head_dim == 8 and theirs.tie_word_embeddings
    theirs.save_pretrained(tmp_path / "again")
    rewritten = json.loads((tmp_path / "again/config.json").read_text())
    assert qwen3.Config.from_huggingface(rewritten) == CONFIG


def test_both_rope_spellings_and_no_default():
    new = huggingface.to_json(CONFIG)
    del new["rope_theta"]
    assert qwen3.Config.from_huggingface(new).rope_theta == 5e6
    old = huggingface.to_json(CONFIG)
    del old["rope_parameters"]
    assert qwen3.Config.from_huggingface(old).rope_theta == 5e6
    del old["rope_theta"]
    with pytest.raises(ValueError, match="rope_theta"):
        qwen3.Config.from_huggingface(old)


def test_unsupported_features_are_refused_by_name():
    odd = huggingface.to_json(CONFIG) | {"attention_bias": True, "rope_parameters": None}
    odd["rope_scaling"] = {"type": "yarn", "factor": 4.0}
    with pytest.raises(ValueError, match="attention_bias.*rope_type = 'yarn'"):
        qwen3.Config.from_huggingface(odd)


def test_a_tied_checkpoint_may_repeat_its_head(params, tmp_path):
    huggingface.export(params, CONFIG, tmp_path / "m")
    file = tmp_path / "m" / huggingface.SINGLE
    tensors = load_file(file)
    assert huggingface.HEAD not in tensors
    save_file(tensors | {huggingface.HEAD: tensors["model.embed_tokens.weight"]}, file)
    again, _ = huggingface.load(tmp_path / "m")
    jax.tree.map(np.testing.assert_array_equal, again, params)


def test_a_wrong_checkpoint_is_explained_in_one_message(params, tmp_path):
    huggingface.export(params, CONFIG, tmp_path / "m")
    file = tmp_path / "m" / huggingface.SINGLE
    tensors = load_file(file)
    tensors["model.layers.0.mlp.up_proj.bias"] = tensors.pop("model.layers.0.mlp.up_proj.weight")
    tensors["model.norm.weight"] = np.ones(31, np.float32)
    save_file(tensors, file)
    with pytest.raises(huggingface.CheckpointError) as error:
        huggingface.load(tmp_path / "m")
    message = str(error.value)
    assert "missing: model.layers.0.mlp.up_proj.weight;" in message
    assert "unexpected: model.layers.0.mlp.up_proj.bias;" in message
    assert "model.norm.weight [31], not [32]" in message


def test_absent_files_are_named(params, tmp_path):
    with pytest.raises(huggingface.CheckpointError, match="no config.json"):
        huggingface.load(tmp_path)
    huggingface.export(params, CONFIG, tmp_path / "m", max_shard_bytes=10_000)
    gone = sorted((tmp_path / "m").glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(huggingface.CheckpointError, match=gone.name):
        huggingface.load(tmp_path / "m")


def test_export_replaces_and_carries_the_tokenizer(params, tmp_path):
    source = tmp_path / "tokenizer"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    huggingface.export(params, CONFIG, tmp_path / "m", max_shard_bytes=10_000)
    huggingface.export(params, CONFIG, tmp_path / "m", tokenizer_dir=source)
    names = sorted(path.name for path in (tmp_path / "m").iterdir())
    assert names == ["config.json", huggingface.SINGLE, "tokenizer.json"]
    assert not (tmp_path / "m.partial").exists()

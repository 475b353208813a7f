"""Qwen3 checkpoints in the Hugging Face layout: sharded safetensors, index, config.json."""

import functools
import json
import math
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from safetensors import safe_open
from safetensors.numpy import save_file

from sera_jax.model import qwen3, sharding

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)

TOP = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight"}
HEAD = "lm_head.weight"
LAYER = {
    "attention_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
# Written by some old exports and derived from the config.
DERIVED = "rotary_emb.inv_freq"


class CheckpointError(ValueError):
    """The files on disk are no checkpoint that this model can read; the message lists why."""


def load(
    path: str | pathlib.Path, *, dtype: Any = jnp.float32, mesh: jax.sharding.Mesh | None = None
) -> tuple[qwen3.Params, qwen3.Config]:
    """Reads a checkpoint folder.

    With a mesh, a host reads of each parameter only what its devices hold, one parameter after
    the other.
    """
    folder = pathlib.Path(path)
    config = qwen3.Config.from_huggingface(_read_json(folder / "config.json"))
    files = _tensor_files(folder)
    _check(folder, files, config)
    leaves, structure = jax.tree.flatten_with_path(
        qwen3.parameters(config), is_leaf=qwen3.is_parameter
    )
    read, out = _Reader(files), []
    for key_path, leaf in leaves:
        part = functools.partial(_read_part, read, key_path[-1].key, leaf, np.dtype(dtype))
        if mesh is None:
            out.append(jnp.asarray(part(tuple(map(slice, leaf.shape)))))
        else:
            spec = sharding.spec(leaf.axes, leaf.shape, mesh)
            target = jax.sharding.NamedSharding(mesh, spec)
            out.append(jax.make_array_from_callback(leaf.shape, target, _once_each(part)))
    return structure.unflatten(out), config


def export(
    params: qwen3.Params,
    config: qwen3.Config,
    path: str | pathlib.Path,
    tokenizer_dir: str | pathlib.Path | None = None,
    dtype: str = "float32",
    max_shard_bytes: int = 4 * 2**30,
) -> None:
    """Writes a folder that transformers and SGLang load; replaces `path` when it is complete.

    Every process of a multi-host run calls this; the first one writes.
    """
    final = pathlib.Path(path)
    partial = final.with_name(final.name + ".partial")
    writer = jax.process_index() == 0
    if writer:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    _write_tensors(params, config, partial, np.dtype(jnp.dtype(dtype)), max_shard_bytes, writer)
    if not writer:
        return
    (partial / "config.json").write_text(json.dumps(to_json(config, dtype), indent=2) + "\n")
    for name in TOKENIZER_FILES if tokenizer_dir is not None else ():
        source = pathlib.Path(tokenizer_dir) / name
        if source.is_file():
            shutil.copyfile(source, partial / name)
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)


def to_json(config: qwen3.Config, dtype: str = "float32") -> dict[str, Any]:
    """config.json with both spellings of what transformers 4 and 5 name differently."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": config.num_layers,
        "initializer_range": 0.02,
        "use_cache": True,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "torch_dtype": dtype,
        "dtype": dtype,
    }


def named_tensors(params: qwen3.Params, config: qwen3.Config) -> Iterator[tuple[str, np.ndarray]]:
    """Parameters (or their gradients) by their Hugging Face names and in their layout."""
    for key, name in _top_names(config).items():
        yield name, _to_host(params[key])
    for key in LAYER:
        stacked = _to_host(params["layers"][key])
        for index in range(config.num_layers):
            yield _layer_name(index, key), _their_layout(stacked[index], key)


def _top_names(config: qwen3.Config) -> dict[str, str]:
    return TOP if config.tie_embeddings else TOP | {"head": HEAD}


def _layer_name(index: int, key: str) -> str:
    return f"model.layers.{index}.{LAYER[key]}.weight"


def _their_layout(value: np.ndarray, key: str) -> np.ndarray:
    """One layer's parameter, inputs first, as a matrix [out, in]; vectors stay."""
    return value if value.ndim == 1 else value.reshape(_their_shape(value.shape, key)[::-1]).T


def _their_shape(shape: tuple[int, ...], key: str) -> tuple[int, ...]:
    if len(shape) == 1:
        return shape
    inputs = _inputs(key)
    return math.prod(shape[inputs:]), math.prod(shape[:inputs])


def _inputs(key: str) -> int:
    """How many of a layer's dimensions it reads: only the output projection's are two."""
    return 2 if key == "o" else 1


def _their_shapes(config: qwen3.Config) -> dict[str, tuple[int, ...]]:
    """Every tensor's shape, in the order of named_tensors."""
    declared = qwen3.parameters(config)
    shapes = {name: declared[key].shape for key, name in _top_names(config).items()}
    for key in LAYER:
        shape = _their_shape(declared["layers"][key].shape[1:], key)
        shapes |= {_layer_name(index, key): shape for index in range(config.num_layers)}
    return shapes


def _read_json(path: pathlib.Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(
            f"no {path.name} in {path.parent}; a checkpoint folder has one"
        ) from None
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path} is no JSON: {error}") from None


def _tensor_files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Tensor name -> file, from the files themselves."""
    if (folder / INDEX).is_file():
        names = sorted(set(_read_json(folder / INDEX)["weight_map"].values()))
    else:
        names = [SINGLE]
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise CheckpointError(f"{folder} lacks {_some(absent)}; copy the checkpoint again")
    files = {}
    for name in names:
        with safe_open(folder / name, "np") as handle:
            files |= {tensor: folder / name for tensor in handle.keys()}
    return files


def _check(folder: pathlib.Path, files: dict[str, pathlib.Path], config: qwen3.Config) -> None:
    """Refuses a checkpoint whose tensors are not the config's, naming all that differ."""
    wanted = _their_shapes(config)
    found = {name for name in files if not name.endswith(DERIVED)}
    if config.tie_embeddings:
        found.discard(HEAD)  # some exports repeat the embedding under this name
    read = _Reader(files)
    shapes = {name: read.shape(name) for name in found & wanted.keys()}
    misshapen = [
        f"{name} {list(shape)}, not {list(wanted[name])}"
        for name, shape in sorted(shapes.items())
        if shape != wanted[name]
    ]
    problems = {
        "missing": sorted(wanted.keys() - found),
        "unexpected": sorted(found - wanted.keys()),
        "of another shape": misshapen,
    }
    listed = [f"{kind}: {_some(names)}" for kind, names in problems.items() if names]
    if listed:
        raise CheckpointError(f"{folder} does not fit its config.json; {'; '.join(listed)}")


def _some(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class _Reader:
    """Reads single tensors; keeps files open, as a 4B checkpoint has hundreds of them."""

    def __init__(self, files: dict[str, pathlib.Path]):
        self.files, self.handles = files, {}

    def _open(self, name: str):
        path = self.files[name]
        if path not in self.handles:
            self.handles[path] = safe_open(path, "np")
        return self.handles[path]

    def __call__(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        return self._open(name).get_slice(name)[index]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._open(name).get_slice(name).get_shape())


def _once_each(part: Callable) -> Callable:
    """Replicas on several devices of a host are read once."""
    found = {}

    def read(index):
        key = str(index)
        if key not in found:
            found[key] = part(index)
        return found[key]

    return read


def _read_part(
    read: _Reader, key: str, leaf: qwen3.Parameter, dtype: np.dtype, index: tuple[slice, ...]
) -> np.ndarray:
    """The part of a parameter at `index`, read from the files in their layout."""
    index = tuple(slice(*i.indices(size)[:2]) for i, size in zip(index, leaf.shape, strict=True))
    if key not in LAYER:
        return read(TOP.get(key, HEAD), index).astype(dtype)
    shape = leaf.shape[1:]
    if len(shape) == 1:
        theirs = index[1:]
    else:
        inputs = _inputs(key)
        rows = _flat(index[1 + inputs :], shape[inputs:])
        theirs = (rows, _flat(index[1 : 1 + inputs], shape[:inputs]))
    layers = range(leaf.shape[0])[index[0]]
    out = np.empty([i.stop - i.start for i in index], dtype)
    for place, layer in enumerate(layers):
        tensor = read(_layer_name(layer, key), theirs)
        out[place] = (tensor if tensor.ndim == 1 else tensor.T).reshape(out.shape[1:])
    return out


def _flat(index: tuple[slice, ...], shape: tuple[int, ...]) -> slice:
    """Place in the flattened dimension of a part that is cut along the first dimension only."""
    rest = math.prod(shape[1:])
    return slice(index[0].start * rest, index[0].stop * rest)


def _to_host(value: Any) -> np.ndarray:
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return multihost_utils.process_allgather(value, tiled=True)
    return np.asarray(value)


def _write_tensors(
    params: qwen3.Params,
    config: qwen3.Config,
    folder: pathlib.Path,
    dtype: np.dtype,
    max_shard_bytes: int,
    writer: bool,
) -> None:
    """Streams parameters into files, at most one stacked leaf and one file in memory."""
    places, total = _plan(config, dtype.itemsize, max_shard_bytes)
    pending: dict[str, np.ndarray] = {}
    last = {file: name for name, file in places.items()}
    for name, tensor in named_tensors(params, config):
        pending[name] = np.ascontiguousarray(tensor.astype(dtype))
        file = places[name]
        if last[file] == name:
            if writer:
                save_file(pending, folder / file, metadata={"format": "pt"})
            pending = {}
    if writer and len(last) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _plan(config: qwen3.Config, itemsize: int, limit: int) -> tuple[dict[str, str], int]:
    """Tensor name -> file name, filling files in the order of named_tensors; and all bytes."""
    numbers, number, used, total = {}, 1, 0, 0
    for name, shape in _their_shapes(config).items():
        size = math.prod(shape) * itemsize
        if used and used + size > limit:
            number, used = number + 1, 0
        numbers[name], used, total = number, used + size, total + size
    if number == 1:
        return dict.fromkeys(numbers, SINGLE), total
    return {n: f"model-{i:05d}-of-{number:05d}.safetensors" for n, i in numbers.items()}, total

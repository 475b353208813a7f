"""The embedded policy server: the part of SGLang's HTTP API that training uses, over an Engine."""

import asyncio
import functools
import hmac
import json
import os
import pathlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from sera_jax.model import huggingface, qwen3
from sera_jax.serving import api
from sera_jax.serving.engine import CompileCounter, Engine, ShapeMismatch, seeds

API_KEY_ENV = "SERA_API_KEY"
ADMIN_KEY_ENV = "SERA_ADMIN_API_KEY"
OPEN_PATHS = ("/health", "/health_generate")
READ_PATHS = ("/generate", "/model_info", "/get_model_info", "/server_info", "/get_server_info")
PAUSE_MODES = ("abort", "retract", "in_place")

_dumps = functools.partial(json.dumps, separators=(",", ":"))


@dataclass
class Served:
    """What the handlers share."""

    engine: Engine
    model: api.Model
    model_path: str
    compiles: CompileCounter
    started: float


def load(path: str | pathlib.Path, *, context: int, seed: int = 0, **engine_options) -> Served:
    """An engine over a checkpoint folder, every shape compiled."""
    folder = pathlib.Path(path)
    compiles = CompileCounter()
    params, config = huggingface.load(folder)
    engine = Engine(params, config, context=context, **engine_options)
    model = api.Model(config.vocab_size, context, _eos(folder), _tokenizer(folder), seeds(seed))
    return Served(engine, model, str(folder), compiles, time.time())


def _eos(folder: pathlib.Path) -> frozenset[int]:
    """End-of-sequence ids of config.json and generation_config.json: an id, a list, or none."""
    ids: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            eos = json.loads((folder / name).read_text()).get("eos_token_id")
            ids.update(eos if isinstance(eos, list) else [] if eos is None else [eos])
    return frozenset(ids)


def _tokenizer(folder: pathlib.Path):
    if not (folder / "tokenizer.json").is_file():
        return None
    import tokenizers  # only a server of text needs it

    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def application(served: Served) -> web.Application:
    app = web.Application(middlewares=[_keys_middleware()], client_max_size=64 * 2**20)
    routes = {
        "/generate": (("POST", "PUT"), generate),
        "/health": (("GET",), health),
        "/health_generate": (("GET",), health),
        "/model_info": (("GET",), model_info),
        "/get_model_info": (("GET",), model_info),
        "/server_info": (("GET",), server_info),
        "/get_server_info": (("GET",), server_info),
        "/flush_cache": (("GET", "POST"), flush_cache),
        "/abort_request": (("GET", "POST"), abort_request),
        "/pause_generation": (("POST",), pause_generation),
        "/continue_generation": (("POST",), continue_generation),
        "/update_weights_from_disk": (("POST",), update_weights),
    }
    for path, (methods, handler) in routes.items():
        for method in methods:
            app.router.add_route(method, path, functools.partial(handler, served))
    return app


async def generate(served: Served, http: web.Request) -> web.Response:
    begin = time.perf_counter()
    try:
        body = json.loads(await http.read())
        asked = api.read(body, served.model)
        requests = [one.request for one in asked]
        if len(requests) == 1:
            await served.engine.generate(requests[0])
        else:
            await asyncio.gather(*map(served.engine.generate, requests))
    except (api.BadRequest, ValueError) as error:
        return _error(str(error))
    if served.engine.failure:
        return _error(f"engine failed: {served.engine.failure}", status=500)
    latency = time.perf_counter() - begin
    answers = [api.write(one, served.model, latency) for one in asked]
    many = len(answers) > 1 or _is_batch(body)
    return _json(answers if many else answers[0])


def _is_batch(body: dict) -> bool:
    prompts = body.get("input_ids") or body.get("text")
    return isinstance(prompts, list) and bool(prompts) and not isinstance(prompts[0], int)


async def health(served: Served, http: web.Request) -> web.Response:
    return web.Response(status=503 if served.engine.failure else 200)


async def model_info(served: Served, http: web.Request) -> web.Response:
    return _json(
        {
            "model_path": served.model_path,
            "served_model_name": served.model_path,
            "tokenizer_path": served.model_path,
            "is_generation": True,
            "weight_version": served.engine.version,
            "model_type": "qwen3",
            "architectures": ["Qwen3ForCausalLM"],
        }
    )


async def server_info(served: Served, http: web.Request) -> web.Response:
    engine = served.engine
    return _json(
        {
            "model_path": served.model_path,
            "context_length": engine.context,
            "max_req_input_len": engine.context,  # prompts are shorter, here by one at least
            "max_total_num_tokens": sum(r.shapes.slots * engine.context for r in engine.replicas),
            "max_running_requests": sum(r.shapes.slots for r in engine.replicas),
            "replicas": len(engine.replicas),
            "vocab_size": served.model.vocab_size,
            "num_requests": engine.load,
            "compilations": served.compiles.count,
            "uptime": time.time() - served.started,
            "version": "sera_jax embedded",
        }
    )


async def flush_cache(served: Served, http: web.Request) -> web.Response:
    await served.engine.flush()
    return web.Response(text="Cache flushed.\n")


async def abort_request(served: Served, http: web.Request) -> web.Response:
    body = await _object(http)
    served.engine.abort(str(body.get("rid") or ""), bool(body.get("abort_all")))
    return web.Response()


async def pause_generation(served: Served, http: web.Request) -> web.Response:
    mode = (await _object(http)).get("mode", "abort")
    if mode not in PAUSE_MODES:
        return _error(f"mode {mode!r} is none of {', '.join(PAUSE_MODES)}")
    await served.engine.pause(mode)
    return _json({"message": "Generation paused successfully.", "status": "ok"})


async def continue_generation(served: Served, http: web.Request) -> web.Response:
    await served.engine.resume()
    return _json({"message": "Generation continued successfully.", "status": "ok"})


async def update_weights(served: Served, http: web.Request) -> web.Response:
    body = await _object(http)
    path, version = str(body.get("model_path", "")), body.get("weight_version")
    engine = served.engine
    try:
        params = await asyncio.to_thread(_load_same_model, path, engine)
        if body.get("abort_all_requests"):
            engine.abort(everything=True)
        name = engine.version if version is None else str(version)
        await engine.update(params, name, body.get("flush_cache", True))
    except (OSError, ValueError, KeyError) as error:
        message = f"Failed to update weights from {path!r}, the old ones stay: {error}"
        return _json({"success": False, "message": message, "num_paused_requests": 0}, 400)
    served.model_path = path
    message = "Succeeded to update model weights."
    if version is not None:
        message += f" Weight version updated to {version}."
    return _json({"success": True, "message": message, "num_paused_requests": 0})


def _load_same_model(path: str, engine: Engine) -> qwen3.Params:
    if not pathlib.Path(path).is_dir():
        raise FileNotFoundError("no such folder")
    params, config = huggingface.load(path)
    for name in ("rope_theta", "rms_norm_eps", "num_heads", "tie_embeddings"):
        if getattr(config, name) != getattr(engine.config, name):
            raise ShapeMismatch(
                f"{name} is {getattr(config, name)}, the served model has "
                f"{getattr(engine.config, name)}"
            )
    return params


async def _object(http: web.Request) -> dict[str, Any]:
    """The body of a control call; an empty one is an empty object."""
    data = await http.read()
    try:
        body = json.loads(data) if data else {}
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(
            text=_dumps({"error": {"message": "the body is not a JSON object"}}),
            content_type="application/json",
        )
    return body


def _json(obj: Any, status: int = 200) -> web.Response:
    return web.Response(body=_dumps(obj).encode(), status=status, content_type="application/json")


def _error(message: str, status: int = 400) -> web.Response:
    return _json({"error": {"message": message}}, status)


def _keys_middleware():
    """Bearer keys from the environment: one for normal calls, one for control; none by default.

    Where only the normal key is set it opens the control calls too.
    """
    api_key, admin_key = os.environ.get(API_KEY_ENV), os.environ.get(ADMIN_KEY_ENV)

    @web.middleware
    async def middleware(
        http: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        key = api_key if http.path in READ_PATHS else admin_key or api_key
        if key and http.path not in OPEN_PATHS:
            given = http.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), key.encode()):
                return _error("Unauthorized", status=401)
        return await handler(http)

    return middleware


async def serve(
    served: Served, host: str, port: int, ready: Callable[[str], None] = lambda url: None
) -> None:
    """Serves until cancelled. Port 0 picks a free one; `ready` gets the URL."""
    # A client that goes away cancels its handler, which aborts the request.
    runner = web.AppRunner(application(served), access_log=None, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        ready(f"http://{host}:{runner.addresses[0][1]}")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()

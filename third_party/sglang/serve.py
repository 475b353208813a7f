"""Starts SGLang: python serve.py --model-path FOLDER --port 30000 [SGLang's flags]

Runs in the environment that install.sh makes. It is SGLang's own launcher plus what a child of the
trainer needs: API keys from SERA_API_KEY and SERA_ADMIN_API_KEY instead of a command line that
others can read, a line when the server is ready, and an end when `--parent=PID` ends. Where torch
sees no GPU it also does what SGLang's wheel lacks for a plain CPU (README.md).

SGLang's worker processes import this file again, so the stand-ins are made at import.
"""

import ctypes
import os
import signal
import sys
import types

import torch

READY = "Policy server ready at "
CPU_FLAGS = (
    "--device=cpu",
    "--attention-backend=torch_native",
    "--sampling-backend=pytorch",
    "--grammar-backend=xgrammar",
    "--dtype=float32",
    "--disable-overlap-schedule",
    "--mem-fraction-static=0.5",
    "--chunked-prefill-size=1024",
    "--sleep-on-idle",
)
CPU_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "1",
}
# torchvision registers shape functions for these when it is imported; its compiled part, which
# declares them, does not load beside a CPU build of torch.
TORCHVISION_OPS = (
    "nms",
    "qnms",
    "roi_align",
    "qroi_align",
    "_roi_align_backward",
    "roi_pool",
    "_roi_pool_backward",
    "ps_roi_align",
    "_ps_roi_align_backward",
    "ps_roi_pool",
    "_ps_roi_pool_backward",
    "deform_conv2d",
    "_deform_conv2d_backward",
)


def stand_in_for_kernels() -> types.ModuleType:
    """A `sgl_kernel` to import from: whatever is taken from it raises when it is called."""

    def missing(name: str):
        if name.startswith("__"):
            raise AttributeError(name)

        def kernel(*_, **__):
            raise RuntimeError(f"sgl_kernel.{name} has no build for a CPU without AMX")

        return kernel

    module = types.ModuleType("sgl_kernel")
    module.__path__ = []  # a package: its parts are asked for, and may be missing
    module.__getattr__ = missing
    return module


def declare_torchvision_ops() -> torch.library.Library:
    library = torch.library.Library("torchvision", "DEF")
    for name in TORCHVISION_OPS:
        library.define(f"{name}(Tensor x) -> Tensor")
    return library


os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "0")
ON_CPU = not torch.cuda.is_available()
if ON_CPU:
    for name, value in CPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    sys.modules["sgl_kernel"] = stand_in_for_kernels()
    TORCHVISION = declare_torchvision_ops()  # kept: with it the declarations go


def die_with(parent: int) -> None:
    """The kernel ends this process when the one that started it ends; SGLang's follow it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit("the process that started the policy server is gone")


def main(flags: list[str]) -> None:
    for flag in [flag for flag in flags if flag.startswith("--parent=")]:
        flags.remove(flag)
        die_with(int(flag.partition("=")[2]))
    for flag, variable in (("api-key", "SERA_API_KEY"), ("admin-api-key", "SERA_ADMIN_API_KEY")):
        if os.environ.get(variable):
            flags.append(f"--{flag}={os.environ[variable]}")

    from sglang.srt.entrypoints import engine
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    arguments = prepare_server_args([*(CPU_FLAGS if ON_CPU else ()), *flags])
    arguments.resolve_once()
    for_logging = engine._server_args_for_logging  # it prints all of them, keys too
    engine._server_args_for_logging = lambda arguments: {
        name: value for name, value in for_logging(arguments).items() if not name.endswith("_key")
    }
    try:
        launch_server(arguments, launch_callback=lambda: print(READY + arguments.url(), flush=True))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])

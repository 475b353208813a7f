#!/usr/bin/env bash
# launch/sglang.sh MODEL [SGLang's flags]: serves a checkpoint folder with SGLang, one server a GPU
#   on ports 30000, 30001, ...; prints the flag that gives them to launch/main.py. Without a GPU it
#   is one slow server on the CPU.
# launch/sglang.sh --tiny [SGLang's flags]: the same over a tiny random checkpoint, to see it work.
#
# Installs SGLang on first use (third_party/sglang). CUDA_VISIBLE_DEVICES chooses GPUs. Keys come
# from SERA_API_KEY and SERA_ADMIN_API_KEY. Ctrl-C ends the servers.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 1 ] || { sed -n '2,5s/^# //p' "$0" >&2 && exit 2; }
model=$1 && shift

if [ "$model" = --tiny ]; then
    model=$(mktemp -d)/tiny
    cd "$root"
    JAX_PLATFORMS=cpu "${PYTHON:-python}" - "$model" << 'EOF'
import sys
import jax
from sera_jax.model import huggingface, qwen3

config = qwen3.Config(512, 64, 128, 2, 2, 1, 32, 1e4, max_position_embeddings=1024)
huggingface.export(qwen3.init(jax.random.key(0), config), config, sys.argv[1])
EOF
fi

flags=(--host 127.0.0.1 --weight-version default --skip-tokenizer-init)
gpus=()
if nvidia-smi > /dev/null 2>&1; then
    all=$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd,)
    IFS=, read -ra gpus <<< "${CUDA_VISIBLE_DEVICES-$all}"
fi
if [ ${#gpus[@]} -gt 0 ]; then
    kind=cuda
    # 6 tokens more than trees may use (SGLang keeps them for itself).
    # Logits in float32 as the trainer's are; prompts with the longest cached prefix go first.
    flags+=(--context-length 13318 --mem-fraction-static 0.85 --enable-fp32-lm-head)
    flags+=(--schedule-policy lpm --enable-metrics --enable-cache-report)
else
    kind=cpu gpus=("")
    flags+=(--context-length 518 --max-running-requests 32 --max-total-tokens 32768)
fi
python=$("$root/third_party/sglang/install.sh" "$kind")

trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
urls=()
for i in "${!gpus[@]}"; do
    port=$((30000 + i))
    # Seeds differ: servers that sample alike would give the same answer to the same prompt.
    CUDA_VISIBLE_DEVICES=${gpus[i]} "$python" "$root/third_party/sglang/serve.py" \
        --model-path "$model" --port "$port" --random-seed "$i" "${flags[@]}" "$@" &
    urls+=("http://127.0.0.1:$port")
done
echo "when they are ready: --config.server.url=$(IFS=,; echo "${urls[*]}")"
wait

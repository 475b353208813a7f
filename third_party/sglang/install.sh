#!/usr/bin/env bash
# install.sh cpu|cuda: SGLang in a Python environment of its own. Prints the path of its python.
#
# The environment lies in the cache folder under a hash of what is pinned: asking again costs
# nothing, other pins make another environment, and deleting the folder is always safe.
set -euo pipefail
kind=${1:-}
here=$(cd "$(dirname "$0")" && pwd)
case $kind in
    cpu) files=("$here"/requirements-cpu.txt "$here"/requirements-cpu-nodeps.txt) size="2.6 GB" ;;
    cuda) files=("$here"/requirements-cuda.txt) size="about 10 GB" ;;
    *) echo "usage: $0 cpu|cuda" >&2 && exit 2 ;;
esac
hash=$(cat "${files[@]}" | sha256sum | cut -c1-12)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/sera_jax
target=$cache/sglang-0.5.23-$kind-$hash

if [ "${2:-}" = --where ]; then # for programs that must not install by themselves
    echo "$target/bin/python"
    exit
fi
mkdir -p "$cache"
# One at a time: whoever comes second waits, then finds it there.
exec 9> "$cache/sglang-install.lock"
flock 9
if [ ! -e "$target/complete" ]; then
    python=${SGLANG_PYTHON:-python3.11}
    command -v "$python" > /dev/null || {
        echo "install.sh: no $python; the pinned wheels are for Python 3.11 (SGLANG_PYTHON=PATH)" >&2
        exit 1
    }
    echo "installing SGLang 0.5.23 for $kind ($size, minutes) into $target" >&2
    rm -rf "$target" # what an interrupted installation left
    "$python" -m venv "$target"
    pip=("$target/bin/python" -m pip install -qq --disable-pip-version-check)
    "${pip[@]}" -r "${files[0]}" >&2
    [ "$kind" = cuda ] || "${pip[@]}" --no-deps -r "${files[1]}" >&2
    touch "$target/complete"
fi
echo "$target/bin/python"

#!/usr/bin/env bash
# launch/tpu/train.sh NAME ZONE FLAGS: trains on all hosts of a TPU VM slice, one process a host.
#   FLAGS are those of launch/main.py, with a --config.run.folder on a file system that all hosts
#   and the policy servers share. The same command goes on where a run has stopped.
# launch/tpu/train.sh NAME ZONE --setup: copies this checkout to the hosts and installs it there.
# launch/tpu/train.sh NAME ZONE --stop: saves the run and ends it; Ctrl-C does not reach the hosts.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,6s/^# //p' "$0" >&2 && exit 2; }
name=$1 zone=$2 && shift 2
checkout=$(cd "$(dirname "$0")/../.." && pwd)
tpu=(gcloud compute tpus tpu-vm)

everywhere() { "${tpu[@]}" ssh "$name" --zone="$zone" --worker=all --command="cd sera && $1"; }

case $1 in
    --setup)
        packed=$(mktemp -d)/sera.tar.gz
        git -C "$checkout" archive --format=tar.gz --prefix=sera/ --output="$packed" HEAD
        "${tpu[@]}" scp "$packed" "$name:sera.tar.gz" --zone="$zone" --worker=all
        "${tpu[@]}" ssh "$name" --zone="$zone" --worker=all --command="tar xzf sera.tar.gz"
        everywhere "python3 -m venv .venv && .venv/bin/pip install -q -r requirements.txt 'jax[tpu]'"
        ;;
    --stop) everywhere 'kill -INT $(cat process)' ;;
    # The flags are quoted once more, for the hosts' own shells.
    *)
        flags=$(printf '%q ' --coordinator=auto "$@")
        everywhere "echo \$\$ > process && exec .venv/bin/python launch/main.py $flags"
        ;;
esac

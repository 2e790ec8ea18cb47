#!/bin/sh
# run.sh DIR COMMAND...: runs a command where the Services in DIR work on their own addresses, without any privilege: in a user
# and network namespace of its own, with redial. Whatever the command starts ends with it.
set -eu
[ $# -ge 2 ] || { echo "usage: $0 DIR COMMAND..." >&2; exit 2; }
if [ -z "${REDIAL_INSIDE-}" ]; then
	exec env REDIAL_INSIDE=1 unshare --map-root-user --net --pid --fork --kill-child "$0" "$@"
fi
services=$1
shift
XDG_RUNTIME_DIR=$(mktemp -d)
export XDG_RUNTIME_DIR
ip link set lo up
redial --manifests "$services" --interception local &
proxy=$!
trap 'kill $proxy 2>/dev/null && wait $proxy; rm -r "$XDG_RUNTIME_DIR"' EXIT
until redial status >/dev/null 2>&1; do
	kill -0 $proxy 2>/dev/null # or it has said why it ended
	sleep 0.1
done
"$@"

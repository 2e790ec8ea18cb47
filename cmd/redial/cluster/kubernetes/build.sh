#!/usr/bin/env bash
# build.sh: builds kube-apiserver and kube-controller-manager into a folder named after what they are built from, and
# prints that folder. About 13 minutes on 2 cores the first time, nothing afterwards.
set -euo pipefail
cd "$(dirname "$0")"
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
sum=$(cat go.mod go.sum | sha256sum | cut -c1-12)
out=${XDG_CACHE_HOME:-$HOME/.cache}/redial/kubernetes-$version-$sum
mkdir -p "$out"
for command in kube-apiserver kube-controller-manager; do
	[ -x "$out/$command" ] && continue
	echo "building $command $version, once, into $out" >&2
	# To a name of its own first: an interrupted build must not look like a finished one.
	go build -buildvcs=false -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$out/.$command" "k8s.io/kubernetes/cmd/$command"
	mv "$out/.$command" "$out/$command"
done
echo "$out"

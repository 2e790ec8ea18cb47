#!/bin/sh
# rootfs.sh DIR: collects the iptables programs of this Debian machine, and all that they load, below DIR.
set -eu
out=$1
mkdir -p "$out/usr/sbin" "$out/run" "$out/tmp"
copy() { # a file, to the same place; a link as what it points to
	mkdir -p "$out$(dirname "$1")"
	cp -L "$1" "$out$1"
}
for multi in xtables-nft-multi xtables-legacy-multi; do
	copy "/usr/sbin/$multi"
	kind=${multi#xtables-}
	kind=${kind%-multi}
	for family in iptables ip6tables; do
		for program in "" -save -restore; do
			ln -sf "$multi" "$out/usr/sbin/$family-$kind$program"
			# Without a mode in the name: nft, as Debian has it. redial looks for the mode the node's rules are in by itself.
			[ "$kind" = legacy ] || ln -sf "$multi" "$out/usr/sbin/$family$program"
		done
	done
done
# ldd names the loader and the libraries by path.
for file in /usr/sbin/xtables-nft-multi /usr/sbin/xtables-legacy-multi; do
	ldd "$file"
done | grep -o '/[^ ]*' | sort -u | while read -r lib; do copy "$lib"; done
extensions=$(dirname "$(find /usr/lib -name libxt_standard.so -print -quit)")
for file in "$extensions"/lib*; do copy "$file"; done

